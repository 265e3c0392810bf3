"""Strategies by name: how drafters and verifiers are used for one request."""

from types import MappingProxyType
from typing import Final

from cosine_p2p.strategies.base import StrategyKind
from cosine_p2p.strategies.cosine import Cosine
from cosine_p2p.strategies.plain import Plain
from cosine_p2p.strategies.speculative import Speculative

STRATEGIES: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            StrategyKind(name="plain", make=Plain, wants_drafters=False),
            StrategyKind(name="speculative", make=Speculative, is_stepped=True),
            StrategyKind(name="cosine", make=Cosine),
        )
    }
)
