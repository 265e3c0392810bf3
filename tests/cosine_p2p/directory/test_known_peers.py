"""Known peers: those that answered are dialled after the initial ones."""

from typing import Any

import pytest

from cosine_p2p.directory.known_peers import DIAL_LATER_S, MAX_DIALLED, KnownPeer, order_peers
from tests.cosine_p2p.samples import identity_of


def maddr(number: int) -> str:
    return f"/ip4/192.0.2.{number}/tcp/4001/p2p/{identity_of(number).peer_id}"


def peer(number: int, *, has_answered: bool = True) -> KnownPeer:
    return KnownPeer(maddrs=(maddr(number),), has_answered=has_answered, asked_at_s=100.0)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"maddrs": ["nonsense"], "has_answered": True, "asked_at_s": 1.0},
        {"maddrs": [maddr(1), maddr(2)], "has_answered": True, "asked_at_s": 1.0},
        {"maddrs": [maddr(1).replace("/tcp/", "/udp/")], "has_answered": True, "asked_at_s": 1.0},
    ],
)
def test_what_is_no_peer_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        KnownPeer.read(value)


def test_initial_peers_come_first_unless_they_did_not_answer_lately() -> None:
    known = [peer(5), peer(6), peer(1, has_answered=False)]
    initial = (maddr(1), maddr(2))
    assert order_peers(initial, known, now_s=101.0) == (maddr(2), maddr(5), maddr(6), maddr(1))
    assert order_peers(initial, known, now_s=100.0 + DIAL_LATER_S) == (maddr(1), maddr(2), maddr(5), maddr(6))
    assert order_peers(initial, (), now_s=0.0) == initial
    # An address is dialled once, and not all known ones are.
    known = [peer(number) for number in range(1, 10)]
    assert order_peers((maddr(1),), known, now_s=0.0) == tuple(map(maddr, range(1, MAX_DIALLED + 1)))
