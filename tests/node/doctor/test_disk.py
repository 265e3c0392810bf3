"""Room on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from cosine_node.doctor.machine import LEAST_BYTES, Folder, inspect_folder, judge_folder, written_folders

ROOMY = Folder(
    purpose="models", path=Path("m"), free_bytes=LEAST_BYTES + 1000, is_writable=True, variable="HF_HOME"
)


@pytest.mark.parametrize(
    ("folder", "download_bytes", "status"),
    [
        (ROOMY, 1000, "ok"),
        (ROOMY, 1001, "failure"),
        (replace(ROOMY, purpose="cache"), 1001, "ok"),
        (replace(ROOMY, free_bytes=0), 0, "failure"),
        (replace(ROOMY, is_writable=False), 0, "failure"),
    ],
)
def test_what_is_written_must_fit(folder: Folder, download_bytes: int, status: str) -> None:
    found = judge_folder(folder, download_bytes=download_bytes)
    assert (found.status, "HF_HOME" in found.fix) == (status, status == "failure")


def test_a_folder_that_is_not_there_yet_is_where_its_parent_is(tmp_path: Path) -> None:
    folder = inspect_folder("cache", tmp_path / "a" / "b", "XDG_CACHE_HOME")
    assert (folder.is_writable, folder.free_bytes > 0, folder.path) == (True, True, tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    assert not inspect_folder("cache", tmp_path / "file" / "b", "XDG_CACHE_HOME").is_writable


def test_the_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "h"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    paths = {folder.purpose: folder.path for folder in written_folders()}
    assert paths["data"].is_relative_to(tmp_path / "d")
    assert paths["cache"].is_relative_to(tmp_path / "c")
    assert paths["models"] == tmp_path / "h" / "hub"
