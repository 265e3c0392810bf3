"""A file of the state folder holds what was written last, and nothing where it is not ours."""

from pathlib import Path

import pytest

from cosine_p2p.state_file import StateFile


def state(path: Path) -> StateFile:
    return StateFile("unused", max_bytes=64, file=path)


def test_what_is_written_is_read_and_no_draft_is_left(tmp_path: Path) -> None:
    file = state(tmp_path / "deep" / "state.json")
    file.write({"a": [1]})
    assert file.read() == {"a": [1]}
    assert [path.name for path in file.path.parent.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 60, '{"a": "' + "x" * 64 + '"}'])
def test_what_is_broken_too_large_or_no_object_holds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text, "utf-8")
    assert state(tmp_path / "state.json").read() == {}


def test_a_file_that_is_missing_or_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    file = state(blocked / "state.json")
    file.write({"a": 1})
    assert file.read() == {}
