"""Strategies by name: how drafters and verifiers are used for one request."""

from types import MappingProxyType
from typing import Final

from cosine_p2p.strategies.base import StrategyKind
from cosine_p2p.strategies.cosine import Cosine, CosineOptions
from cosine_p2p.strategies.plain import Plain
from cosine_p2p.strategies.published.cosine_paper import CosinePaper
from cosine_p2p.strategies.published.dsi import Dsi
from cosine_p2p.strategies.published.dsi_parallel import DsiParallel
from cosine_p2p.strategies.published.pipeinfer import PipeInfer
from cosine_p2p.strategies.published.specinfer import SpecInfer
from cosine_p2p.strategies.published.speculative import Speculative
from cosine_p2p.strategies.published.spin import Spin

# The names of the command line.
STRATEGIES: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            StrategyKind(name="plain", make=Plain, wants_drafters=False),
            StrategyKind(name="speculative", make=Speculative, is_stepped=True),
            StrategyKind(name="specinfer", make=SpecInfer, is_stepped=True),
            StrategyKind(name="spin", make=Spin, is_stepped=True),
            StrategyKind(name="cosine-paper", make=CosinePaper, is_stepped=True),
            StrategyKind(name="dsi", make=Dsi),
            StrategyKind(name="dsi-2", make=DsiParallel, is_stepped=True, verifiers=2),
            StrategyKind(name="pipeinfer", make=PipeInfer),
            StrategyKind(
                name="cosine", make=Cosine, drafter_counts=(CosineOptions().drafters, 1, 0), is_delegable=True
            ),
        )
    }
)
