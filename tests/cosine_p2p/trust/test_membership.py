"""A founder admits and revokes members; a membership checks other peers."""

import json
import stat
from pathlib import Path

import pytest

from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.founded_swarm import KEY_FILE, LEDGER_FILE, FoundedSwarm
from cosine_p2p.trust.membership import LOOK_AGAIN_S, Membership, read_swarm_file
from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.membership import CERTIFICATE_LINE, MAX_CERTIFICATE_S, REVOCATIONS_LINE, as_line
from tests.cosine_p2p.private_swarm import DAY_S, NOW_S, Clock, PrivateSwarm
from tests.cosine_p2p.samples import identity_of

US, MEMBER, STRANGER = (identity_of(number).peer_id for number in (1, 2, 3))


def written(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "friends.swarm"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_member_is_let_through_and_nobody_else() -> None:
    swarm, other = PrivateSwarm(), PrivateSwarm(seed=78)
    ours, theirs = swarm.member(US), swarm.admit(MEMBER)
    ours.check(theirs, peer_id=MEMBER)
    for certificate, reason in (
        (b"", "no certificate was shown"),
        (b"junk", "msgpack"),
        (other.admit(STRANGER), "another"),
        (theirs, "for another peer"),
    ):
        with pytest.raises(NotAMember, match=reason):
            ours.check(certificate, peer_id=STRANGER)
    with pytest.raises(NotAMember, match="no certificate was shown"):
        ours.check_met(STRANGER)
    with pytest.raises(UsageError, match=f"no certificate for {STRANGER} of the swarm friends"):
        Membership(STRANGER, swarm.papers(swarm.admit(US)), clock=swarm.clock)


def test_the_newest_list_of_revoked_certificates_counts() -> None:
    swarm = PrivateSwarm()
    ours = swarm.member(US)
    ours.check(swarm.admit(MEMBER), peer_id=MEMBER)
    assert ours.take_revocations(swarm.revoke(MEMBER, sequence=2))
    with pytest.raises(NotAMember, match="revoked"):
        ours.check_met(MEMBER)
    assert not ours.take_revocations(swarm.revoke(sequence=2))
    assert not ours.take_revocations(swarm.revoke(sequence=1))
    ours.check(swarm.admit(MEMBER), peer_id=MEMBER)
    with pytest.raises(NotAMember, match="another swarm"):
        ours.take_revocations(PrivateSwarm(seed=78).revoke(US, sequence=9))
    assert ours.sequence == 2


def test_a_list_outlives_the_process_and_a_broken_one_is_none(tmp_path: Path) -> None:
    swarm, file = PrivateSwarm(), tmp_path / "revoked.json"
    state = StateFile("revoked.json", max_bytes=1 << 20, file=file)
    papers, theirs = swarm.papers(swarm.admit(US)), swarm.admit(MEMBER)
    Membership(US, papers, state=state, clock=swarm.clock).take_revocations(swarm.revoke(MEMBER))
    again = Membership(US, papers, state=state, clock=swarm.clock)
    assert again.sequence == 1
    with pytest.raises(NotAMember, match="revoked"):
        again.check(theirs, peer_id=MEMBER)
    for kept in ("nonsense", "cosine-revoked:AAAA", 7):
        file.write_text(json.dumps({"revoked": kept}))
        assert Membership(US, papers, state=state, clock=swarm.clock).sequence == 0


def test_changes_of_the_swarm_file_count_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    swarm = PrivateSwarm()
    theirs, first, renewed = swarm.admit(MEMBER), swarm.admit(US), swarm.admit(US)
    lines = [as_line(certificate, prefix=CERTIFICATE_LINE) for certificate in (first, renewed)]
    file = written(tmp_path, lines[0])
    # A clock that was ahead for a while delays nothing.
    swarm.clock.now_s += DAY_S / 2
    ours = Membership.load(file, US, clock=swarm.clock)
    swarm.clock.now_s -= DAY_S / 2
    ours.check(theirs, peer_id=MEMBER)
    written(tmp_path, *lines, as_line(swarm.revoke(MEMBER, sequence=4), prefix=REVOCATIONS_LINE))
    ours.check(theirs, peer_id=MEMBER)
    assert ours.certificate == first
    swarm.clock.now_s += LOOK_AGAIN_S
    with pytest.raises(NotAMember, match="revoked"):
        ours.check(theirs, peer_id=MEMBER)
    assert (ours.certificate, ours.sequence) == (renewed, 4)
    file.unlink()
    swarm.clock.now_s += LOOK_AGAIN_S
    ours.check(swarm.admit(STRANGER), peer_id=STRANGER)
    assert "friends.swarm cannot be read" in caplog.text
    assert (ours.certificate, ours.sequence) == (renewed, 4)


def test_a_founder_admits_members_that_accept_each_other_until_one_is_revoked(tmp_path: Path) -> None:
    folder = tmp_path / "friends"
    made = FoundedSwarm.create(folder, "friends")
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert FoundedSwarm.open(folder).swarm_id == made.swarm_id

    def admitted(peer_id: str) -> str:
        return FoundedSwarm.open(folder).admit(peer_id, lifetime_s=DAY_S, now_s=NOW_S)

    def membership(peer_id: str, *lines: str) -> Membership:
        return Membership(peer_id, read_swarm_file(written(tmp_path, *lines)), clock=Clock())

    ours = admitted(US)
    us, them = membership(US, ours), membership(MEMBER, admitted(MEMBER))
    us.check(them.certificate, peer_id=MEMBER)
    us = membership(US, ours, FoundedSwarm.open(folder).revoke(MEMBER, now_s=NOW_S))
    with pytest.raises(NotAMember, match="revoked"):
        us.check(them.certificate, peer_id=MEMBER)
    assert FoundedSwarm.open(folder).members[MEMBER].is_revoked
    # Admitted again, with a later certificate.
    us.check(membership(MEMBER, admitted(MEMBER)).certificate, peer_id=MEMBER)
    assert not FoundedSwarm.open(folder).members[MEMBER].is_revoked


def test_each_list_is_newer_also_after_a_restore_and_forgets_ended_members(tmp_path: Path) -> None:
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
    swarm.revoke(MEMBER, now_s=NOW_S + DAY_S + MAX_CERTIFICATE_S + 1)
    assert US not in swarm.members
