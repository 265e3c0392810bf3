"""Denied peers: those named for a run, and bans that last between runs until they end or are lifted."""

import json
from pathlib import Path

import pytest

from cosine_p2p.denied_peers import LOOK_AGAIN_S, MAX_BANS, BanFile, DeniedPeers, parse_denied
from cosine_p2p.flood_bans import APART_S, DISCONNECTED, FIRST_BAN_S
from cosine_protocol.errors import UsageError

from .private_swarm import Clock
from .samples import identity_of

PEER, OTHER = identity_of(1).peer_id, identity_of(2).peer_id


def test_a_ban_lasts_between_runs_until_it_ends(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "bans.json"
    BanFile(file, clock=clock).ban(PEER, until_s=clock() + 100)
    bans = BanFile(file, clock=clock)
    assert bans.read() == {PEER: clock() + 100}
    assert PEER in DeniedPeers(bans=bans, clock=clock)
    clock.now_s += 101
    assert PEER not in DeniedPeers(bans=bans, clock=clock)


def test_a_ban_can_be_lifted(tmp_path: Path) -> None:
    bans = BanFile(tmp_path / "bans.json")
    bans.ban(PEER, until_s=1e11)
    assert bans.lift(PEER) and not bans.lift(PEER)
    assert bans.read() == {}


def test_a_running_node_takes_up_a_ban_and_its_end(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "bans.json"
    denied = DeniedPeers([OTHER], BanFile(file, clock=clock), clock=clock)
    assert OTHER in denied and PEER not in denied
    BanFile(file, clock=clock).ban(PEER, until_s=clock() + 3 * LOOK_AGAIN_S)
    clock.now_s += LOOK_AGAIN_S
    assert PEER in denied
    clock.now_s += 2 * LOOK_AGAIN_S
    assert PEER not in denied and OTHER in denied


def test_who_comes_back_after_each_disconnection_is_banned_for_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "bans.json"
    denied = DeniedPeers(bans=BanFile(file, clock=clock), clock=clock)
    for _ in range(DISCONNECTED):
        assert PEER not in denied
        clock.now_s += APART_S
        denied.note_disconnected(PEER)
    assert PEER in denied and OTHER not in denied
    assert BanFile(file, clock=clock).read() == {PEER: clock() + FIRST_BAN_S}
    assert f"cosine-node ban {PEER} --lift" in caplog.text
    assert BanFile(file, clock=clock).lift(PEER)
    clock.now_s += LOOK_AGAIN_S
    assert PEER not in denied


def test_a_longer_ban_of_the_operators_stays(tmp_path: Path) -> None:
    clock, bans = Clock(), BanFile(tmp_path / "bans.json")
    bans.ban(PEER, until_s=1e11)
    denied = DeniedPeers(bans=bans, clock=clock)
    for _ in range(DISCONNECTED):
        clock.now_s += APART_S
        denied.note_disconnected(PEER)
    assert bans.read() == {PEER: 1e11}


def test_broken_bans_are_none_and_their_number_is_bounded(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "bans.json"
    file.write_text(json.dumps({PEER: "for ever", OTHER: 1e11}))
    assert BanFile(file, clock=clock).read() == {OTHER: 1e11}
    file.write_text(json.dumps({f"peer {n}": clock() + 1000.0 + n for n in range(MAX_BANS)}))
    BanFile(file, clock=clock).ban(PEER, until_s=1e11)
    assert len(BanFile(file, clock=clock).read()) == MAX_BANS
    assert PEER in BanFile(file, clock=clock).read()


def test_peers_are_named_by_id_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "denied.txt"
    file.write_text(f"# nuisances\n\n{OTHER}  # since May\n")
    assert parse_denied([PEER, str(file)]) == {PEER, OTHER}
    assert parse_denied([]) == frozenset()


def test_what_names_no_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a peer id nor a file"):
        parse_denied(["12D3KooWnobody"])
    (tmp_path / "denied.txt").write_text("nobody\n")
    with pytest.raises(UsageError, match=r"'nobody' in .* is not a peer id"):
        parse_denied([str(tmp_path / "denied.txt")])
