"""The parts of `cosine` as it ships, switched off one at a time and added one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_lab.experiments.entrants import SHIPPED, SHIPS, OptionValues
from cosine_p2p.trust.mandates import Coordination

# The label of the first row and the two orders, as they stand in the JSON files.
CHAIN: Final = "a chain of one drafter"
CUMULATIVE: Final = "cumulative"
SINGLE: Final = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """A part's absence: option values, and fields of the scenario."""

    choice: OptionValues = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)


PARTS: Final[Mapping[str, Without]] = {
    "a tree": Without(choice={"width_nodes": 1}),
    "fusion of several drafters": Without(choice={"drafters": 1}),
    "recalls of released drafters": Without(choice={"recalls": False}),
    "copying at the verifier": Without(choice={"policy": "ours"}),
    "coordination at the verifier": Without(scenario={"coordination": Coordination.CLIENT}),
    "a drafter at the verifier": Without(scenario={"home": ""}),
}
"""Parts in the order in which they are added. Without the verifier's copying a drafter copies still."""
VERIFIER_PARTS: Final[Mapping[str, Without]] = {
    "the speculation account": Without(choice={"policy": "ships-no-account"}),
    "the dropping of costly nodes": Without(choice={"policy": "ships-no-dropping"}),
}
"""Parts of the verifier that work of their own accord, with the policy that lacks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the ablation."""

    label: str
    order: str
    choice: OptionValues
    scenario: Mapping[str, Any]


def variants() -> Iterator[Variant]:
    """Every row, the cumulative ones first; the last of those is all of it."""
    labels, off = list(PARTS), list(PARTS.values())
    for count in range(len(PARTS) + 1):
        label = f"+ {labels[count - 1]}" if count else CHAIN
        yield _variant(label, CUMULATIVE, *off[count:])
    for label, without in {**PARTS, **VERIFIER_PARTS}.items():
        yield _variant(f"without {label}", SINGLE, without)


def _variant(label: str, order: str, *without: Without) -> Variant:
    choice: dict[str, Any] = {"policy": SHIPS}
    scenario = dict(SHIPPED)
    for part in without:
        choice |= part.choice
        scenario |= part.scenario
    return Variant(label=label, order=order, choice=choice, scenario=scenario)
