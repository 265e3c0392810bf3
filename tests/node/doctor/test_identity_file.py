"""Key files: looked at, never created or changed."""

from pathlib import Path

import pytest

from cosine_node.doctor import machine as identity_file
from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import judge_key_file
from cosine_p2p.storage.identity_file import claim_identity, load_identity


def test_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "identity"
    found = judge_key_file(file, is_named=True)
    assert (found.status, "created at the first start" in found.found) == (CheckStatus.OK, True)
    assert list(tmp_path.iterdir()) == []


def test_a_healthy_file_tells_its_peer_id(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    peer_id = load_identity(file).peer_id
    assert judge_key_file(file, is_named=True).found == peer_id


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_may_read_or_write_is_a_warning(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "identity"
    load_identity(file)
    file.chmod(mode)
    found = judge_key_file(file, is_named=True)
    assert (found.status, f"{mode:03o}" in found.found) == (CheckStatus.WARNING, True)
    assert f"chmod 600 {file}" in found.fix


def test_a_default_file_in_use_is_no_fault_since_the_next_one_is_taken(tmp_path: Path) -> None:
    claimed = claim_identity(tmp_path / "identity")
    found = judge_key_file(tmp_path / "identity", is_named=False)
    claimed.release()
    assert (found.status, "next free identity" in found.found) == (CheckStatus.OK, True)


def test_a_folder_is_no_key_file(tmp_path: Path) -> None:
    assert judge_key_file(tmp_path, is_named=True).status is CheckStatus.FAILURE


def test_a_damaged_file_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    file.write_bytes(b"junk")
    found = judge_key_file(file, is_named=True)
    assert (found.status, "--identity" in found.fix) == (CheckStatus.FAILURE, True)


def test_a_file_that_cannot_be_created_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_file, "is_writable_folder", lambda _: False)
    found = judge_key_file(tmp_path / "identity", is_named=True)
    assert (found.status, "--identity" in found.fix) == (CheckStatus.FAILURE, True)
