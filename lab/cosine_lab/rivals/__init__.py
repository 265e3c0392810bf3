"""Published designs to compare ours with, each as its paper has it and with its own router and constants."""

from types import MappingProxyType
from typing import Final

from cosine_lab.rivals.cosine_paper import CosinePaper
from cosine_lab.rivals.dsi import Dsi
from cosine_lab.rivals.dsi_parallel import DsiParallel
from cosine_lab.rivals.pipeinfer import PipeInfer
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.rivals.specinfer import SpecInfer
from cosine_lab.rivals.speculative import Speculative
from cosine_lab.rivals.spin import Spin
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES

RIVALS: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            SteppedKind(name="speculative", make=Speculative),
            SteppedKind(name="specinfer", make=SpecInfer),
            SteppedKind(name="spin", make=Spin),
            SteppedKind(name="cosine-paper", make=CosinePaper),
            StrategyKind(name="dsi", make=Dsi),
            SteppedKind(name="dsi-2", make=DsiParallel, verifiers=2),
            StrategyKind(name="pipeinfer", make=PipeInfer),
        )
    }
)
ALL_STRATEGIES: Final = MappingProxyType({**STRATEGIES, **RIVALS})
"""The product's own strategies and their rivals, by the names of the command line."""
