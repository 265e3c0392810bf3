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
def test_what_is_broken_too_large_or_no_object_holds_nothing_and_is_said_once(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    path.write_text(text, "utf-8")
    file = state(path)
    assert file.read() == file.read() == {}
    sentence = f"{path} is broken and counts as empty; what is noted next replaces it"
    assert [record.getMessage() for record in caplog.records] == [sentence]


def test_a_file_that_is_missing_or_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    file = state(blocked / "state.json")
    file.write({"a": 1})
    assert file.read() == {}
