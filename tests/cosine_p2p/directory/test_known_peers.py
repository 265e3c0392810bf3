"""Peers kept between runs: those that answer come first, and no file that somebody else wrote does harm."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosine_p2p.directory.known_peers import (
    MAX_ADDRESSES,
    MAX_DIALLED,
    MAX_FILE_BYTES,
    MAX_NETWORKS,
    MAX_PEERS,
    SILENCE_S,
    KnownPeer,
    KnownPeers,
    order_peers,
)
from tests.cosine_p2p.samples import identity_of


def maddr(number: int, *, port: int = 4001) -> str:
    return f"/ip4/192.0.2.{number}/tcp/{port}/p2p/{identity_of(number).peer_id}"


def peer(number: int, *, has_answered: bool = True, asked_at_s: float = 100.0) -> KnownPeer:
    return KnownPeer(maddrs=(maddr(number),), has_answered=has_answered, asked_at_s=asked_at_s)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "peers.json"


def test_what_is_noted_is_read_again_newest_first_and_the_silent_last(file: Path) -> None:
    known = KnownPeers("main", file)
    assert known.read() == ()
    known.note([peer(1), peer(2, has_answered=False)])
    known.note(
        [peer(3, asked_at_s=200.0), peer(2, has_answered=True, asked_at_s=300.0), peer(4, has_answered=False)]
    )
    assert [(each.maddrs[0], each.has_answered) for each in KnownPeers("main", file).read()] == [
        (maddr(2), True),
        (maddr(3), True),
        (maddr(1), True),
        (maddr(4), False),
    ]
    assert list(file.parent.iterdir()) == [file]


def test_networks_are_kept_apart_and_only_the_last_ones(file: Path) -> None:
    for number in range(MAX_NETWORKS + 2):
        KnownPeers(f"net {number}", file).note([peer(number + 1)])
    assert KnownPeers("net 0", file).read() == ()
    assert KnownPeers(f"net {MAX_NETWORKS + 1}", file).read() == (peer(MAX_NETWORKS + 2),)
    assert len(json.loads(file.read_text())) == MAX_NETWORKS


def test_peers_and_their_addresses_are_bounded(file: Path) -> None:
    known = KnownPeers("main", file)
    known.note(peer(number, asked_at_s=float(number)) for number in range(1, MAX_PEERS + 4))
    assert [each.asked_at_s for each in known.read()] == [float(n) for n in range(MAX_PEERS + 3, 3, -1)]
    many = [maddr(1, port=port) for port in range(1, 20)]
    value = {"maddrs": many, "has_answered": True, "asked_at_s": 1.0}
    assert KnownPeer.read(value).maddrs == tuple(many[:MAX_ADDRESSES])


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"maddrs": [], "has_answered": True, "asked_at_s": 1.0},
        {"maddrs": ["nonsense"], "has_answered": True, "asked_at_s": 1.0},
        {"maddrs": [maddr(1), maddr(2)], "has_answered": True, "asked_at_s": 1.0},
        {"maddrs": [maddr(1)], "has_answered": "yes", "asked_at_s": 1.0},
        {"maddrs": [maddr(1)], "has_answered": True, "asked_at_s": "now"},
        {"maddrs": [maddr(1).replace("/tcp/", "/udp/")], "has_answered": True, "asked_at_s": 1.0},
    ],
)
def test_what_is_no_peer_is_left_out(file: Path, value: Any) -> None:
    file.parent.mkdir()
    good = {"maddrs": [maddr(1)], "has_answered": True, "asked_at_s": 100.0}
    file.write_text(json.dumps({"main": [value, good]}))
    assert KnownPeers("main", file).read() == (peer(1),)


@given(
    st.one_of(st.binary(max_size=40), st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode))
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broken_file_holds_nobody_and_is_replaced(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "peers.json"
    file.write_bytes(data)
    assert KnownPeers("main", file).read() == ()
    KnownPeers("main", file).note([peer(1)])
    assert KnownPeers("main", file).read() == (peer(1),)
    file.write_text(file.read_text() + " " * MAX_FILE_BYTES)
    assert KnownPeers("main", file).read() == (), "too large"


def test_initial_peers_come_first_unless_they_did_not_answer_lately() -> None:
    known = [peer(5), peer(6), peer(1, has_answered=False, asked_at_s=100.0)]
    initial = (maddr(1), maddr(2))
    assert order_peers(initial, known, now_s=101.0) == (maddr(2), maddr(5), maddr(6), maddr(1))
    assert order_peers(initial, known, now_s=100.0 + SILENCE_S) == (maddr(1), maddr(2), maddr(5), maddr(6))
    assert order_peers(initial, (), now_s=0.0) == initial


def test_an_address_is_dialled_once_and_not_all_that_are_known() -> None:
    known = [peer(number) for number in range(1, 10)]
    assert order_peers((maddr(1),), known, now_s=0.0) == tuple(map(maddr, range(1, MAX_DIALLED + 1)))
