"""Strategies by name: how drafters and verifier are used for one request."""

from types import MappingProxyType
from typing import Final

from cosine_p2p.strategies.base import Strategy
from cosine_p2p.strategies.cosine import Cosine
from cosine_p2p.strategies.plain import Plain
from cosine_p2p.strategies.speculative import Speculative
from cosine_protocol.errors import UsageError

STRATEGIES: Final = MappingProxyType({cls.name: cls for cls in (Plain, Speculative, Cosine)})


def make_strategy(name: str, root: bytes, position: int = 0) -> Strategy:
    """A new strategy for one request. Raises `UsageError` for an unknown name."""
    if name not in STRATEGIES:
        raise UsageError(f"There is no strategy {name!r}; choose one of {', '.join(sorted(STRATEGIES))}.")
    return STRATEGIES[name](root, position)
