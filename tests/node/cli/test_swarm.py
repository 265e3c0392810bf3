"""`cosine-node swarm`, `ban` and `identity`."""

import json
import stat
from pathlib import Path

import pytest

from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.identity import Identity, public_key_of
from tests.node.cli.conftest import Run

PEER = Identity.from_seed(b"\x05" * 32).peer_id


def test_found_admit_revoke_and_show(run: Run, tmp_path: Path) -> None:
    folder, file = tmp_path / "friends", tmp_path / "friends.swarm"
    swarm_id, note = run("swarm", "create", "friends", "--out", str(folder)).out.splitlines()
    assert swarm_id.startswith("12D3KooW") and "friends" in note and str(folder) in note
    line = run("swarm", "admit", PEER, "--days", "7", "--folder", str(folder)).out
    assert line.startswith("cosine-member:") and line.count("\n") == 1
    file.write_text(line)
    assert read_swarm_file(file).swarm_id == swarm_id
    shown = run("swarm", "show", str(file)).out.splitlines()
    assert shown[:2] == [swarm_id, "  friends"]
    assert PEER in shown[2] and "member, until" in shown[2]
    assert json.loads(run("swarm", "create", "f", "--out", str(tmp_path / "f"), "--json").out)["name"] == "f"
    revoked = run("swarm", "revoke", PEER, "--folder", str(folder)).out
    assert revoked.startswith("cosine-revoked:")
    file.write_text(line + revoked)
    for place in ((str(file),), ("--folder", str(folder))):
        assert json.loads(run("swarm", "show", *place, "--json").out)["members"][0]["state"] == "revoked"
    # Another member's file has the revocation alone.
    other = Identity.from_seed(b"\x06" * 32).peer_id
    file.write_text(run("swarm", "admit", other, "--folder", str(folder)).out + revoked)
    _, _, member, gone = run("swarm", "show", str(file)).out.splitlines()
    assert (other in member, gone) == (True, f"  {PEER}  revoked")


def test_a_ban_is_made_shown_and_lifted(run: Run) -> None:
    assert run("ban").out == "No peer is banned.\n"
    assert run("ban", PEER, "--days", "7").out.startswith(f"{PEER}  until 20")
    assert run("ban", PEER, "--why", "\x1b[2Jspam").out.endswith(": \ufffd[2Jspam\n")
    ban = json.loads(run("ban", "--json").out)["bans"][PEER]
    assert (ban["floods"], ban["until"][:2]) == (0, "20")
    assert run("ban", PEER, "--lift").out == "No peer is banned.\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("swarm found friends", "No such command 'found'."),
        ("swarm admit", "Missing argument 'PEER_ID'."),
        (f"swarm admit {PEER}", "Missing option '--folder'"),
        ("swarm show", "Name a swarm file, or the founder's folder with --folder."),
        (f"swarm revoke {PEER} --folder x --days 7", "No such option: --days"),
        (f"swarm admit {PEER} --folder x --days 367", "--days must be above 0 and at most 366."),
        (f"swarm admit {PEER} --folder /nowhere", "/nowhere holds no swarm"),
        (f"ban {PEER} --lift", "is not banned"),
        (f"ban {PEER} --days -1", "--days must be above 0"),
        ("ban nobody", "'nobody' is neither a peer id nor a file"),
    ],
)
def test_mistakes_are_named(run: Run, line: str, sentence: str) -> None:
    told = run(*line.split())
    assert (told.code, sentence in told.err) == (2, True)


def test_a_key_file_is_created_once_and_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "key"
    first, again = (json.loads(run("identity", "--identity", str(file), "--json").out) for _ in range(2))
    assert first == again == {"peer_id": first["peer_id"], "file": str(file)}
    assert run("identity", "--identity", str(file)).out.split() == [first["peer_id"], str(file)]
    assert len(public_key_of(first["peer_id"])) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
