"""Denied peers: those named for a run, and bans that last between runs until they end or are lifted."""

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
    """As often as makes a ban."""
    for _ in range(DISCONNECTED):
        clock.now_s += each_s
        denied.note_disconnected(PEER)


def flood(file: Path, clock: Clock) -> Ban:
    """The ban of a peer that a node which has just begun disconnects as often as it takes."""
    disconnected(DeniedPeers(bans=BanFile(file, clock=clock), clock=clock), clock)
    return BanFile(file, clock=clock).read()[PEER]


def test_a_ban_lasts_between_runs_until_it_ends_or_is_lifted(file: Path, clock: Clock) -> None:
    BanFile(file, clock=clock).ban(PEER, until_s=clock() + 100, why="spam")
    bans = BanFile(file, clock=clock)
    assert bans.read() == {PEER: Ban(peer_id=PEER, until_s=clock() + 100, why="spam")}
    assert PEER in DeniedPeers(bans=bans, clock=clock)
    clock.now_s += 101
    assert PEER not in DeniedPeers(bans=bans, clock=clock)
    bans.ban(PEER, until_s=1e11, why="spam")
    bans.ban(OTHER, until_s=clock() + 100, why="spam")
    assert list(BanFile(file, clock=clock).read()) == [OTHER, PEER], "the latest end last"
    assert bans.lift(PEER) and not bans.lift(PEER)
    assert list(bans.read()) == [OTHER]


def test_who_comes_back_after_each_disconnection_is_banned_for_an_hour(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    denied = DeniedPeers(bans=BanFile(file, clock=clock), clock=clock)
    disconnected(denied, clock)
    assert PEER in denied and OTHER not in denied
    ban = Ban(peer_id=PEER, until_s=clock() + FIRST_BAN_S, why=FLOODED, floods=1)
    assert BanFile(file, clock=clock).read() == {PEER: ban}
    assert f"cosine-node ban {PEER} --lift" in caplog.text
    assert BanFile(file, clock=clock).lift(PEER)
    clock.now_s += LOOK_AGAIN_S
    assert PEER not in denied


@pytest.mark.parametrize("each_s", [WITHIN_S / 2, APART_S / 2], ids=["now and then", "calls under way"])
def test_what_is_no_flood_bans_nobody(file: Path, clock: Clock, each_s: float) -> None:
    denied = DeniedPeers(bans=BanFile(file, clock=clock), clock=clock)
    disconnected(denied, clock, each_s=each_s)
    assert PEER not in denied


def test_bans_double_up_to_a_day_also_where_the_node_begins_anew_until_they_are_forgotten(
    file: Path, clock: Clock
) -> None:
    for times in (1, 2, 4, 8, 16, 24, 24):
        ban = flood(file, clock)
        assert ban.until_s == clock() + times * FIRST_BAN_S
        clock.now_s = ban.until_s + 1
        assert PEER not in BanFile(file, clock=clock).read()
    clock.now_s += REMEMBERED_S
    assert flood(file, clock).until_s == clock() + FIRST_BAN_S


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
