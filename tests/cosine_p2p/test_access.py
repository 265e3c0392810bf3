"""Tests of the peers that a user allows."""

import time
from pathlib import Path

import pytest

from cosine_p2p.access import Access
from cosine_p2p.trust.denied_peers import BanFile
from cosine_p2p.trust.founded_swarm import FoundedSwarm
from cosine_protocol.errors import NotAMember, UsageError
from tests.cosine_p2p.private_swarm import DAY_S
from tests.cosine_p2p.samples import identity_of

US, OTHER = identity_of(1).peer_id, identity_of(2).peer_id


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def swarm_file(tmp_path: Path, *, began_s: float | None = None) -> tuple[FoundedSwarm, Path]:
    """Create a swarm with this peer as its only member, for a day."""
    founded = FoundedSwarm.create(tmp_path / "friends", "friends")
    file = tmp_path / "friends.swarm"
    file.write_text(founded.admit(US, lifetime_s=DAY_S, now_s=time.time() if began_s is None else began_s))
    return founded, file


def test_without_anything_said_all_of_the_main_network_but_banned_peers() -> None:
    access = Access.parse()
    assert (access.network, access.gate(US).certificate) == ("main", b"")
    access.gate(US).check_met(OTHER)
    BanFile().ban(OTHER, until_s=time.time() + 100, why="spam")
    with pytest.raises(NotAMember, match="it is denied"):
        access.gate(US).check_met(OTHER)


def test_a_private_swarm_is_a_network_of_its_own(tmp_path: Path) -> None:
    founded, file = swarm_file(tmp_path)
    access = Access.parse(swarm=str(file), deny=[OTHER])
    assert access.network == founded.swarm_id
    gate = access.gate(US)
    gate.check(US, gate.certificate)
    with pytest.raises(NotAMember, match="it is denied"):
        gate.check(OTHER, b"")
    with pytest.raises(UsageError, match="give --swarm or --network, not both"):
        Access.parse(network="mine", swarm=file)


def test_who_is_no_member_or_no_longer_is_told_how_to_become_one(tmp_path: Path) -> None:
    _, file = swarm_file(tmp_path)
    with pytest.raises(UsageError, match=f"no certificate for {OTHER}.*swarm admit {OTHER}"):
        Access.parse(swarm=file).gate(OTHER)
    _, ended = swarm_file(tmp_path / "older", began_s=time.time() - 2 * DAY_S)
    with pytest.raises(UsageError, match=f"the certificate has expired.*swarm admit {US}"):
        Access.parse(swarm=ended).gate(US)
