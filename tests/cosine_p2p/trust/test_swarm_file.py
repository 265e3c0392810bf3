"""A swarm file holds lines as the founder sends them; what is none is named in one sentence."""

from pathlib import Path

import pytest

from cosine_p2p.trust.membership import Membership, read_swarm_file
from cosine_protocol.errors import UsageError
from cosine_protocol.membership import CERTIFICATE_LINE, REVOCATIONS_LINE, as_line
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.cosine_p2p.samples import identity_of

US, OTHER = identity_of(1).peer_id, identity_of(2).peer_id
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
    first, second, others = SWARM.admit(US), SWARM.admit(US), SWARM.admit(OTHER)
    older, newer = SWARM.revoke(sequence=1), SWARM.revoke(OTHER, sequence=2)
    lines = ("# from Ada", "", f"  {line(second)} ", listed(newer), line(others), line(first), listed(older))
    papers = read_swarm_file(written(tmp_path, *lines))
    assert (papers.swarm_id, papers.name) == (SWARM.swarm_id, "friends")
    assert papers.certificate_of(US) == second
    assert papers.certificate_of(OTHER) == others
    assert papers.certificate_of(SWARM.swarm_id) is None
    assert papers.revocations == (older, newer)


def test_a_membership_is_loaded_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = written(tmp_path, line(SWARM.admit(US)), listed(SWARM.revoke(OTHER, sequence=4)))
    assert Membership.load(file, US, clock=SWARM.clock).sequence == 4
    with pytest.raises(UsageError, match="no certificate for"):
        Membership.load(file, OTHER, clock=SWARM.clock)


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
