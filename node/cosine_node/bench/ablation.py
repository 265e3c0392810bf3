"""The parts of `cosine`, switched off one at a time and added one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from cosine_p2p.strategies.cosine import CosineOptions

_DEFAULTS: Final = CosineOptions()
CHAIN: Final = "a chain of one drafter"
CUMULATIVE: Final = "cumulative"
SINGLE: Final = "single"


@dataclass(frozen=True, slots=True)
class Part:
    """A part by the option that is `off` without it."""

    label: str
    option: str
    off: Any

    @property
    def absence(self) -> str:
        """Why it cannot be switched off, empty if it can."""
        if self.option not in {known.name for known in fields(CosineOptions)}:
            return f"there is no option {self.option}"
        return "it is off anyway" if getattr(_DEFAULTS, self.option) == self.off else ""


PARTS: Final = (
    Part("a tree", "width_nodes", 1),
    Part("fusion of several drafters", "drafters", 1),
    Part("pre-drafted corrections", "predrafts", False),
    Part("the controller", "controls", False),
    Part("recalls of released drafters", "recalls", False),
)
VERIFIER_PARTS: Final = (
    ("wait-or-go", "no-waiting"),
    ("the speculation account", "no-account"),
    ("the dropping of costly nodes", "no-dropping"),
    ("any of these three", "published"),
)
"""What the verifier does of its own accord, with the policy (`entrants.POLICIES`) that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row: `choice` as in `entrants`, or why there is none."""

    label: str
    order: str
    choice: Mapping[str, Any] = field(default_factory=dict)
    skipped: str = ""


def variants() -> list[Variant]:
    """Every row, the cumulative ones first; the last of those is all of it."""
    return [*_cumulative(), *_single()]


def _cumulative() -> Iterator[Variant]:
    there = [part for part in PARTS if not part.absence]
    yield Variant(label=CHAIN, order=CUMULATIVE, choice={part.option: part.off for part in there})
    for part in PARTS:
        if part.absence:
            yield Variant(label=f"+ {part.label}", order=CUMULATIVE, skipped=part.absence)
            continue
        missing = there[there.index(part) + 1 :]
        yield Variant(
            label=f"+ {part.label}", order=CUMULATIVE, choice={other.option: other.off for other in missing}
        )


def _single() -> Iterator[Variant]:
    for part in PARTS:
        choice = {} if part.absence else {part.option: part.off}
        yield Variant(label=f"without {part.label}", order=SINGLE, choice=choice, skipped=part.absence)
    for label, policy in VERIFIER_PARTS:
        yield Variant(label=f"without {label}", order=SINGLE, choice={"policy": policy})
