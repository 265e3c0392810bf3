"""Plain decoding asks for nothing."""

from cosine_p2p.strategy.base import Committed, DrafterStarted, Tick, VerifierOpened
from cosine_p2p.strategy.registry import Plain
from cosine_protocol.messages import PassStats


def test_it_never_acts() -> None:
    plain = Plain(bytes(16))
    stats = PassStats(0, 0, 0)
    for event in (
        VerifierOpened(0.06, 0.01),
        DrafterStarted(1, 1.0, 0.006, 0.01),
        Committed(0, (1,), bytes(16), stats),
        Tick(),
    ):
        assert plain.on(event, 0.0) == []
