"""Strategies by name."""

from types import MappingProxyType
from typing import Final

from cosine_p2p.strategy.base import Action, Event, StrategyKind
from cosine_p2p.strategy.cosine import Cosine, CosineOptions


class Plain:
    """A strategy without drafters."""

    def __init__(self, root: bytes) -> None:
        del root

    def on(self, event: Event, now_s: float) -> list[Action]:
        del event, now_s
        return []


# By the names of the command line.
STRATEGIES: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            StrategyKind(name="plain", make=Plain, wants_drafters=False),
            StrategyKind(
                name="cosine", make=Cosine, drafter_counts=(CosineOptions().drafters, 1, 0), is_delegable=True
            ),
        )
    }
)
