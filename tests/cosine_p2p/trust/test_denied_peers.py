"""Denied peers: those of one run, and bans that last between runs until they end or are lifted."""

import json
from pathlib import Path

import pytest

from cosine_p2p.trust.denied_peers import (
    APART_S,
    DISCONNECTED,
    FIRST_BAN_S,
    LOOK_AGAIN_S,
    MAX_BANS,
    MAX_WHY,
    REMEMBERED_S,
    WITHIN_S,
    Ban,
    BanFile,
    DeniedPeers,
    parse_denied,
)
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.private_swarm import Clock
from tests.cosine_p2p.samples import identity_of

PEER, OTHER = identity_of(1).peer_id, identity_of(2).peer_id
FLOODED = "it flooded this node each time it came back"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bans.json"


def disconnected(denied: DeniedPeers, clock: Clock, *, each_s: float = APART_S) -> None:
    for _ in range(DISCONNECTED):
        clock.now_s += each_s
        denied.note_disconnected(PEER)


def flood(file: Path, clock: Clock) -> DeniedPeers:
    """The denied peers of a new node that disconnects a peer as often as leads to a ban."""
    denied = DeniedPeers(bans=BanFile(file, clock=clock), clock=clock)
    disconnected(denied, clock)
    return denied


def test_a_ban_lasts_between_runs_until_it_ends_or_is_lifted(file: Path, clock: Clock) -> None:
    bans = BanFile(file, clock=clock)
    bans.ban(OTHER, until_s=clock() + 100, why="spam")
    bans.ban(PEER, until_s=1e11, why="spam")
    bans.ban(OTHER, until_s=clock() + 100, why="spam")
    again = BanFile(file, clock=clock)
    assert list(again.read()) == [OTHER, PEER], "the latest end last"
    assert OTHER in DeniedPeers(bans=again, clock=clock)
    clock.now_s += 101
    assert list(again.read()) == [PEER]
    assert OTHER not in DeniedPeers(bans=again, clock=clock)
    assert bans.lift(PEER) and not bans.lift(PEER) and not again.read()


def test_a_peer_that_floods_again_is_banned(file: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    denied, bans = flood(file, clock), BanFile(file, clock=clock)
    assert PEER in denied and OTHER not in denied
    assert bans.read() == {PEER: Ban(peer_id=PEER, until_s=clock() + FIRST_BAN_S, why=FLOODED, floods=1)}
    assert f"cosine-node ban {PEER} --lift" in caplog.text
    assert bans.lift(PEER)
    clock.now_s += LOOK_AGAIN_S
    assert PEER not in denied


def test_a_clock_that_is_set_back_delays_no_ban(file: Path, clock: Clock) -> None:
    bans = BanFile(file, clock=clock)
    denied = DeniedPeers(bans=bans, clock=clock)
    denied.note_disconnected(PEER)
    assert OTHER not in denied
    clock.now_s -= 86_400.0
    disconnected(denied, clock)
    assert PEER in denied
    clock.now_s -= 86_400.0
    bans.ban(OTHER, until_s=1e11, why="spam")
    assert OTHER in denied


@pytest.mark.parametrize("each_s", [WITHIN_S / 2, APART_S / 2], ids=["now and then", "calls under way"])
def test_what_is_no_flood_bans_nobody(file: Path, clock: Clock, each_s: float) -> None:
    denied = DeniedPeers(bans=BanFile(file, clock=clock), clock=clock)
    disconnected(denied, clock, each_s=each_s)
    assert PEER not in denied


def test_bans_double_up_to_a_day_until_they_are_forgotten(file: Path, clock: Clock) -> None:
    bans = BanFile(file, clock=clock)
    for times, pause_s in (*((times, 0.0) for times in (1, 2, 4, 8, 16, 24, 24)), (1, REMEMBERED_S)):
        clock.now_s += pause_s
        flood(file, clock)
        assert bans.read()[PEER].until_s == clock() + times * FIRST_BAN_S
        clock.now_s += times * FIRST_BAN_S + 1
        assert PEER not in bans.read()


def test_broken_bans_are_none_and_said_once(file: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    good = {"until_s": 1e11, "why": "spam", "floods": 0}
    bad: list[object] = ["for ever", 1e11, {}, good | {"until_s": float("inf")}, good | {"floods": -1}]
    file.write_text(json.dumps({OTHER: good} | {f"peer {n}": value for n, value in enumerate(bad)}))
    bans = BanFile(file, clock=clock)
    for _ in range(3):
        assert list(bans.read()) == [OTHER]
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: {len(bad)} of {len(bad) + 1} bans cannot be read and do not hold"
    ]


def test_the_number_and_the_size_of_bans_are_bounded(file: Path, clock: Clock) -> None:
    known = {f"peer {n}": {"until_s": clock() + 1000.0 + n, "why": "", "floods": 0} for n in range(MAX_BANS)}
    file.write_text(json.dumps(known))
    BanFile(file, clock=clock).ban(PEER, until_s=1e11, why="x" * 1000)
    bans = BanFile(file, clock=clock).read()
    assert len(bans) == MAX_BANS and "peer 0" not in bans
    assert bans[PEER].why == "x" * MAX_WHY


def test_peers_are_named_by_id_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "denied.txt"
    file.write_text(f"# nuisances\n\n{OTHER}  # since May\n")
    assert parse_denied([PEER, str(file)]) == {PEER, OTHER}
    assert parse_denied([]) == frozenset()
    with pytest.raises(UsageError, match="neither a peer id nor a file"):
        parse_denied(["12D3KooWnobody"])
    file.write_text("nobody\n")
    with pytest.raises(UsageError, match=r"'nobody' in .* is not a peer id"):
        parse_denied([str(file)])
