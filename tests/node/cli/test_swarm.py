"""`cosine-node swarm`: what each action prints, and mistakes in one sentence."""

import json
from pathlib import Path

import pytest

from cosine_node.cli import main
from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.identity import Identity

PEER = Identity.from_seed(b"\x05" * 32).peer_id


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command says on stdout, or on stderr where it fails."""
    with pytest.raises(SystemExit) as ended:
        main(["swarm", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out if code == 0 else err


def test_found_admit_revoke_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "friends", tmp_path / "friends.swarm"
    swarm_id, note = said(capsys, "create", "friends", "--out", str(folder)).splitlines()
    assert swarm_id.startswith("12D3KooW") and "friends" in note and str(folder) in note
    line = said(capsys, "admit", PEER, "--days", "7", "--folder", str(folder))
    assert line.startswith("cosine-member:") and line.count("\n") == 1
    file.write_text(line)
    assert read_swarm_file(file).swarm_id == swarm_id
    shown = said(capsys, "show", str(file)).splitlines()
    assert shown[:2] == [swarm_id, "  friends"]
    assert PEER in shown[2] and "member, until" in shown[2]
    revoked = said(capsys, "revoke", PEER, "--folder", str(folder))
    assert revoked.startswith("cosine-revoked:")
    file.write_text(line + revoked)
    for place in (("show", str(file)), ("show", "--folder", str(folder))):
        assert json.loads(said(capsys, *place, "--json"))["members"][0]["state"] == "revoked"


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(said(capsys, "create", "friends", "--out", str(tmp_path), "--json"))
    assert made["name"] == "friends" and made["folder"] == str(tmp_path)
    admitted = json.loads(said(capsys, "admit", PEER, "--folder", str(tmp_path), "--json"))
    assert admitted["peer_id"] == PEER and admitted["line"].startswith("cosine-member:")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("found", "friends"), "There is no action 'found'; choose one of create, admit, revoke, show."),
        (("create",), "Say what to create: `cosine-node swarm create NAME`."),
        (("admit",), "Say what to admit: `cosine-node swarm admit PEER_ID`."),
        (("admit", PEER), "Name the founder's folder with --folder"),
        (("admit", PEER, "--folder", "x", "--days", "0"), "--days must be above 0 and at most 366."),
        (("admit", PEER, "--folder", "x", "--days", "367"), "--days must be above 0 and at most 366."),
        (("admit", PEER, "--folder", "/nowhere"), "/nowhere holds no swarm"),
        (("show", "/nowhere"), "The swarm file /nowhere cannot be read"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in said(capsys, *arguments, code=2)
