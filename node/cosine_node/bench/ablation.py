"""The parts of `cosine` that have an option, switched off one at a time and added one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cosine_node.bench.entrants import PUBLISHED, OptionValues

# The label of the first row and the two orders, as they stand in the JSON files.
CHAIN: Final = "a chain of one drafter"
CUMULATIVE: Final = "cumulative"
SINGLE: Final = "single"
PARTS: Final[Mapping[str, OptionValues]] = {
    "a tree": {"width_nodes": 1},
    "fusion of several drafters": {"drafters": 1},
    "recalls of released drafters": {"recalls": False},
}
"""Parts in the order in which they are added, with the option that is so without them."""
VERIFIER_PARTS: Final[Mapping[str, OptionValues]] = {
    "the speculation account": {"policy": "no-account"},
    "the dropping of costly nodes": {"policy": "no-dropping"},
    "any of these": {"policy": PUBLISHED},
}
"""Parts of the verifier that work of their own accord, with the policy that lacks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the ablation."""

    label: str
    order: str
    choice: OptionValues


def variants() -> Iterator[Variant]:
    """Every row, the cumulative ones first; the last of those is all of it."""
    labels, off = list(PARTS), list(PARTS.values())
    for count in range(len(PARTS) + 1):
        label = f"+ {labels[count - 1]}" if count else CHAIN
        without = {option: value for part in off[count:] for option, value in part.items()}
        yield Variant(label=label, order=CUMULATIVE, choice=without)
    for label, choice in {**PARTS, **VERIFIER_PARTS}.items():
        yield Variant(label=f"without {label}", order=SINGLE, choice=choice)
