"""Reconstructions of published designs, each with its own router and constants."""

from types import MappingProxyType
from typing import Final

from cosine_lab.rivals.dsi import Dsi
from cosine_lab.rivals.pipeinfer import PipeInfer
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.rivals.specinfer import SpecInfer
from cosine_lab.rivals.speculative import Speculative
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES

RIVALS: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            SteppedKind(name="speculative", make=Speculative),
            SteppedKind(name="specinfer", make=SpecInfer),
            StrategyKind(name="dsi", make=Dsi),
            StrategyKind(name="pipeinfer", make=PipeInfer),
        )
    }
)
ALL_STRATEGIES: Final = MappingProxyType({**STRATEGIES, **RIVALS})
"""The product's strategies and their rivals, by name."""
