"""The founder admits and revokes; what was signed stands in the folder, and members understand it."""

import json
import os
import stat
from pathlib import Path

import pytest

from cosine_p2p.trust.founded_swarm import KEY_FILE, LEDGER_FILE, FoundedSwarm
from cosine_p2p.trust.membership import Membership, read_swarm_file
from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.limits import MAX_CERTIFICATE_S
from tests.cosine_p2p.private_swarm import DAY_S, NOW_S, Clock
from tests.cosine_p2p.samples import identity_of

US, MEMBER = identity_of(1).peer_id, identity_of(2).peer_id


def membership(tmp_path: Path, peer_id: str, *lines: str) -> Membership:
    file = tmp_path / f"{peer_id}.swarm"
    file.write_text("\n".join(lines))
    return Membership(peer_id, read_swarm_file(file), clock=Clock())


def test_a_new_swarm_has_a_key_that_nobody_else_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "friends"
    made = FoundedSwarm.create(folder, "friends")
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert FoundedSwarm.open(folder).swarm_id == made.swarm_id
    with pytest.raises(UsageError, match="holds a swarm already"):
        FoundedSwarm.create(folder, "others")


def test_members_find_each_other_until_one_is_revoked(tmp_path: Path) -> None:
    FoundedSwarm.create(tmp_path, "friends")
    # As by one command after the other.
    line = FoundedSwarm.open(tmp_path).admit(US, lifetime_s=DAY_S, now_s=NOW_S)
    theirs = FoundedSwarm.open(tmp_path).admit(MEMBER, lifetime_s=DAY_S, now_s=NOW_S)
    us, them = membership(tmp_path, US, line), membership(tmp_path, MEMBER, theirs)
    us.check(them.certificate, peer_id=MEMBER)
    us = membership(tmp_path, US, line, FoundedSwarm.open(tmp_path).revoke(MEMBER, now_s=NOW_S))
    with pytest.raises(NotAMember, match="revoked"):
        us.check(them.certificate, peer_id=MEMBER)
    assert FoundedSwarm.open(tmp_path).members[MEMBER].is_revoked
    # Admitted again, with a later certificate.
    again = membership(tmp_path, MEMBER, FoundedSwarm.open(tmp_path).admit(MEMBER, lifetime_s=DAY_S, now_s=NOW_S))
    us.check(again.certificate, peer_id=MEMBER)
    assert not FoundedSwarm.open(tmp_path).members[MEMBER].is_revoked


def test_each_list_is_newer_than_the_one_before_also_after_a_restore(tmp_path: Path) -> None:
    swarm = FoundedSwarm.create(tmp_path, "friends")
    for peer_id in (US, MEMBER):
        swarm.admit(peer_id, lifetime_s=DAY_S, now_s=NOW_S)
    old = (tmp_path / LEDGER_FILE).read_text()
    swarm.revoke(US, now_s=NOW_S)
    first = swarm.sequence
    swarm.revoke(MEMBER, now_s=NOW_S)
    assert swarm.sequence > first
    (tmp_path / LEDGER_FILE).write_text(old)
    restored = FoundedSwarm.open(tmp_path)
    restored.revoke(MEMBER, now_s=NOW_S + 60)
    assert restored.sequence > swarm.sequence


def test_a_list_forgets_whose_certificates_have_all_ended(tmp_path: Path) -> None:
    swarm = FoundedSwarm.create(tmp_path, "friends")
    for peer_id in (US, MEMBER):
        swarm.admit(peer_id, lifetime_s=DAY_S, now_s=NOW_S)
    swarm.revoke(US, now_s=NOW_S)
    swarm.revoke(MEMBER, now_s=NOW_S + DAY_S + MAX_CERTIFICATE_S + 1)
    assert US not in swarm.members


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be made"):
        FoundedSwarm.create(tmp_path / "friends", "friends")


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_a_name_is_short_and_printable(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="1 to 64 printable characters"):
        FoundedSwarm.create(tmp_path / "friends", name)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no swarm"):
        FoundedSwarm.open(tmp_path / "nothing")
    swarm = FoundedSwarm.create(tmp_path, "friends")
    with pytest.raises(UsageError, match="is not an Ed25519 peer id; `cosine-node identity` shows"):
        swarm.admit("somebody", lifetime_s=DAY_S, now_s=NOW_S)
    with pytest.raises(UsageError, match="has no certificate of the swarm friends"):
        swarm.revoke(MEMBER, now_s=NOW_S)
    for broken in ("", "[]", json.dumps({"name": "friends"})):
        (tmp_path / LEDGER_FILE).write_text(broken)
        with pytest.raises(UsageError, match="is missing or broken"):
            FoundedSwarm.open(tmp_path)
