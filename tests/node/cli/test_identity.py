"""`cosine-node identity`: one peer id for each key file, kept."""

import json
import stat
from pathlib import Path

import pytest

from cosine_node.cli import main
from cosine_protocol.identity import public_key_of


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
