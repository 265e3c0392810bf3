"""The parts of `cosine` that have an option, switched off one at a time and added one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from cosine_node.bench.entrants import POLICIES, PUBLISHED, OptionValues
from cosine_p2p.strategies.cosine import CosineOptions

# The label of the first row and the two orders, as they stand in the JSON files.
CHAIN: Final = "a chain of one drafter"
CUMULATIVE: Final = "cumulative"
SINGLE: Final = "single"


@dataclass(frozen=True, slots=True)
class CosinePart:
    """A part by the option that is `off` without it."""

    label: str
    option: str
    off: Any

    @property
    def is_on(self) -> bool:
        """True if the option exists and is not off by default."""
        defaults = {option.name: option.default for option in fields(CosineOptions)}
        return bool(defaults.get(self.option, self.off) != self.off)


PARTS: Final = tuple(
    part
    for part in (
        CosinePart("a tree", "width_nodes", 1),
        CosinePart("fusion of several drafters", "drafters", 1),
        CosinePart("recalls of released drafters", "recalls", False),
    )
    if part.is_on
)
"""In the order in which they are added."""
VERIFIER_PARTS: Final = tuple(
    (label, policy)
    for label, policy in (
        ("the speculation account", "no-account"),
        ("the dropping of costly nodes", "no-dropping"),
        ("any of these", PUBLISHED),
    )
    if policy in POLICIES
)
"""Parts of the verifier that work of their own accord, with the policy that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the ablation."""

    label: str
    order: str
    choice: OptionValues


def variants() -> Iterator[Variant]:
    """Every row, the cumulative ones first; the last of those is all of it."""
    for count in range(len(PARTS) + 1):
        label = f"+ {PARTS[count - 1].label}" if count else CHAIN
        yield Variant(label=label, order=CUMULATIVE, choice={part.option: part.off for part in PARTS[count:]})
    for part in PARTS:
        yield Variant(label=f"without {part.label}", order=SINGLE, choice={part.option: part.off})
    for label, policy in VERIFIER_PARTS:
        yield Variant(label=f"without {label}", order=SINGLE, choice={"policy": policy})
