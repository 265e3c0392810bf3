"""A swarm file says who is a member; the membership checks others, takes newer lists, and keeps them."""

import json
from pathlib import Path

import pytest

from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.membership import LOOK_AGAIN_S, Membership, SwarmPapers, read_swarm_file
from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.membership import CERTIFICATE_LINE, REVOCATIONS_LINE, as_line
from tests.cosine_p2p.private_swarm import DAY_S, NOW_S, PrivateSwarm
from tests.cosine_p2p.samples import identity_of

US, MEMBER, STRANGER = (identity_of(number).peer_id for number in (1, 2, 3))


def test_a_member_is_let_through_and_nobody_else() -> None:
    swarm, other = PrivateSwarm(), PrivateSwarm(seed=78)
    ours, theirs = swarm.member(US), swarm.admit(MEMBER)
    ours.check(theirs, peer_id=MEMBER)
    for certificate, reason in (
        (b"", "no certificate was shown"),
        (b"junk", "msgpack"),
        (other.admit(STRANGER), "another"),
    ):
        with pytest.raises(NotAMember, match=reason):
            ours.check(certificate, peer_id=STRANGER)
    with pytest.raises(NotAMember, match="for another peer"):
        ours.check(theirs, peer_id=STRANGER)
    with pytest.raises(NotAMember, match="no certificate was shown"):
        ours.check_met(STRANGER)


def test_who_was_met_is_checked_again_and_a_later_certificate_goes_on() -> None:
    swarm = PrivateSwarm()
    ours = swarm.member(US)
    first = swarm.admit(MEMBER)
    ours.check(first, peer_id=MEMBER)
    swarm.clock.now_s += DAY_S / 2
    later = swarm.admit(MEMBER)
    ours.check(later, peer_id=MEMBER)
    # The first one, shown again on another stream, takes nothing away.
    ours.check(first, peer_id=MEMBER)
    swarm.clock.now_s = NOW_S + DAY_S + 1
    ours.check_met(MEMBER)
    swarm.clock.now_s = NOW_S + 2 * DAY_S
    with pytest.raises(NotAMember, match="expired"):
        ours.check_met(MEMBER)


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


def test_a_list_outlives_the_process(tmp_path: Path) -> None:
    swarm = PrivateSwarm()
    state = StateFile("revoked.json", max_bytes=1 << 20, file=tmp_path / "revoked.json")
    papers, theirs = swarm.papers(swarm.admit(US)), swarm.admit(MEMBER)
    Membership(US, papers, state=state, clock=swarm.clock).take_revocations(swarm.revoke(MEMBER))
    again = Membership(US, papers, state=state, clock=swarm.clock)
    assert again.sequence == 1
    with pytest.raises(NotAMember, match="revoked"):
        again.check(theirs, peer_id=MEMBER)


@pytest.mark.parametrize("kept", ["nonsense", "cosine-revoked:AAAA", 7])
def test_a_broken_file_of_kept_lists_holds_none(tmp_path: Path, kept: object) -> None:
    swarm, file = PrivateSwarm(), tmp_path / "revoked.json"
    file.write_text(json.dumps({"revoked": kept}))
    state = StateFile("revoked.json", max_bytes=1 << 20, file=file)
    assert Membership(US, swarm.papers(swarm.admit(US)), state=state, clock=swarm.clock).sequence == 0


def test_what_is_added_to_the_swarm_file_counts_without_a_restart() -> None:
    swarm = PrivateSwarm()
    theirs, first = swarm.admit(MEMBER), swarm.admit(US)
    now = [swarm.papers(first)]
    ours = Membership(US, now[0], reread=lambda: now[0], clock=swarm.clock)
    renewed = swarm.admit(US)
    now[0] = swarm.papers(first, renewed, revocations=swarm.revoke(MEMBER))
    ours.check(theirs, peer_id=MEMBER)
    assert ours.certificate == first
    swarm.clock.now_s += LOOK_AGAIN_S
    with pytest.raises(NotAMember, match="revoked"):
        ours.check(theirs, peer_id=MEMBER)
    assert ours.certificate == renewed


def test_a_swarm_file_that_breaks_meanwhile_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    swarm = PrivateSwarm()

    def reread() -> SwarmPapers:
        raise UsageError("The file is gone.")

    ours = Membership(US, swarm.papers(swarm.admit(US)), reread=reread, clock=swarm.clock)
    theirs = swarm.admit(MEMBER)
    swarm.clock.now_s += LOOK_AGAIN_S
    ours.check(theirs, peer_id=MEMBER)
    assert "The file is gone" in caplog.text


def test_a_certificate_that_ends_soon_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    swarm = PrivateSwarm()
    ours, theirs = swarm.member(US, lifetime_s=9 * DAY_S), swarm.admit(MEMBER, lifetime_s=99 * DAY_S)
    for days, warnings in ((1, 0), (5, 0), (7, 1), (8, 1)):
        swarm.clock.now_s = NOW_S + days * DAY_S
        ours.check(theirs, peer_id=MEMBER)
        assert caplog.text.count("in the swarm friends ends at 2023-11-23T22:13+00:00") == warnings


def test_papers_of_others_make_nobody_a_member() -> None:
    swarm = PrivateSwarm()
    with pytest.raises(UsageError, match=f"no certificate for {STRANGER} of the swarm friends"):
        Membership(STRANGER, swarm.papers(swarm.admit(US)), clock=swarm.clock)


SWARM = PrivateSwarm()


def line(data: bytes) -> str:
    return as_line(data, prefix=CERTIFICATE_LINE)


def listed(data: bytes) -> str:
    return as_line(data, prefix=REVOCATIONS_LINE)


def written(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "friends.swarm"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_it_holds_certificates_and_lists_among_remarks(tmp_path: Path) -> None:
    first, second, others = SWARM.admit(US), SWARM.admit(US), SWARM.admit(MEMBER)
    older, newer = SWARM.revoke(sequence=1), SWARM.revoke(MEMBER, sequence=2)
    lines = ("# from Ada", "", f"  {line(second)} ", listed(newer), line(others), line(first), listed(older))
    papers = read_swarm_file(written(tmp_path, *lines))
    assert (papers.swarm_id, papers.name) == (SWARM.swarm_id, "friends")
    assert papers.certificate_of(US) == second
    assert papers.certificate_of(MEMBER) == others
    assert papers.certificate_of(SWARM.swarm_id) is None
    assert papers.revocations == (older, newer)


def test_a_membership_is_loaded_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = written(tmp_path, line(SWARM.admit(US)), listed(SWARM.revoke(MEMBER, sequence=4)))
    assert Membership.load(file, US, clock=SWARM.clock).sequence == 4
    with pytest.raises(UsageError, match="no certificate for"):
        Membership.load(file, MEMBER, clock=SWARM.clock)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((), "holds no certificate"),
        ((listed(SWARM.revoke()),), "holds no certificate"),
        (("hello",), "Line 1 of .* must begin with cosine-member:"),
        (("", line(SWARM.admit(US))[:-4]), "Line 2 of"),
        ((line(SWARM.admit(US)), line(PrivateSwarm(seed=78).admit(US))), "is of 2 swarms"),
        ((line(SWARM.admit(US)), listed(PrivateSwarm(seed=78).revoke())), "is of 2 swarms"),
    ],
)
def test_what_is_no_swarm_file_is_refused(tmp_path: Path, lines: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_swarm_file(written(tmp_path, *lines))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing cannot be read"):
        read_swarm_file(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not text"):
        read_swarm_file(tmp_path / "binary")
