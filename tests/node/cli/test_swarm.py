"""`cosine-node swarm`, `ban` and `identity`: who is a member, who is kept out, and who one is."""

import json
import stat
from pathlib import Path

import pytest

from cosine_node.cli import main
from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.identity import Identity, public_key_of

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


BAN_PEER = Identity.from_seed(b"\x05" * 32).peer_id


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def ban_said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command says on stdout, or on stderr where it fails."""
    with pytest.raises(SystemExit) as ended:
        main(["ban", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out if code == 0 else err


def test_a_ban_is_made_shown_and_lifted(capsys: pytest.CaptureFixture[str]) -> None:
    assert ban_said(capsys) == "Nobody is banned.\n"
    assert ban_said(capsys, BAN_PEER, "--days", "7").startswith(f"{BAN_PEER}  until 20")
    assert ban_said(capsys, BAN_PEER, "--why", "\x1b[2Jspam").endswith(": \ufffd[2Jspam\n")
    ban = json.loads(ban_said(capsys, "--json"))["bans"][BAN_PEER]
    assert (ban["floods"], ban["until"][:2]) == (0, "20")
    assert ban_said(capsys, BAN_PEER, "--lift") == "Nobody is banned.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((BAN_PEER, "--lift"), "is not banned"),
        (("--lift",), "Say whose ban is to end"),
        ((BAN_PEER, "--days", "-1"), "--days must be above 0"),
        (("nobody",), "'nobody' is neither a peer id nor a file"),
    ],
)
def test_mistakes_of_a_ban_are_named(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in ban_said(capsys, *arguments, code=2)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["identity", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_a_key_file_is_created_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep" / "key"
    first = json.loads(shown(capsys, "--identity", str(file), "--json"))
    again = json.loads(shown(capsys, "--identity", str(file), "--json"))
    assert first == again == {"peer_id": first["peer_id"], "file": str(file)}
    assert len(public_key_of(first["peer_id"])) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_people_read_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    peer_id = json.loads(shown(capsys, "--identity", str(file), "--json"))["peer_id"]
    assert shown(capsys, "--identity", str(file)).split() == [peer_id, str(file)]


def test_the_default_file_is_the_users_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_p2p.storage.identity_file.user_data_dir", lambda name: str(tmp_path / name))
    made = json.loads(shown(capsys, "--json"))
    assert Path(made["file"]).is_relative_to(tmp_path)
    assert Path(made["file"]).is_file()


@pytest.mark.parametrize("content", [b"", b"not a key", b"\x08\x01\x12\x40" + bytes(64)])
def test_a_file_that_is_no_key_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as exit_:
        main(["identity", "--identity", str(file)])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert file.read_bytes() == content
