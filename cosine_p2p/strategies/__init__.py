"""Strategies by name: how drafters and verifiers are used for one request."""

from types import MappingProxyType
from typing import Final

from cosine_p2p.strategies.base import StrategyKind
from cosine_p2p.strategies.cosine import Cosine, CosineOptions
from cosine_p2p.strategies.plain import Plain

# The names of the command line.
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
