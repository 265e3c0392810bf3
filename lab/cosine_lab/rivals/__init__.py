"""Published designs to compare ours with, each as its paper has it and with its own router and constants."""

from types import MappingProxyType
from typing import Final

from cosine_lab.rivals.cosine_paper import CosinePaper
from cosine_lab.rivals.dsi import Dsi
from cosine_lab.rivals.dsi_parallel import DsiParallel
from cosine_lab.rivals.pipeinfer import PipeInfer
from cosine_lab.rivals.specinfer import SpecInfer
from cosine_lab.rivals.speculative import Speculative
from cosine_lab.rivals.spin import Spin
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES

RIVALS: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            StrategyKind(name="speculative", make=Speculative, is_stepped=True),
            StrategyKind(name="specinfer", make=SpecInfer, is_stepped=True),
            StrategyKind(name="spin", make=Spin, is_stepped=True),
            StrategyKind(name="cosine-paper", make=CosinePaper, is_stepped=True),
            StrategyKind(name="dsi", make=Dsi),
            StrategyKind(name="dsi-2", make=DsiParallel, is_stepped=True, verifiers=2),
            StrategyKind(name="pipeinfer", make=PipeInfer),
        )
    }
)
ALL_STRATEGIES: Final = MappingProxyType({**STRATEGIES, **RIVALS})
"""The product's own strategies and their rivals, by the names of the command line."""
