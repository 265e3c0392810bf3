"""A file of the state folder contains what was written last, and invalid files count as empty."""

from pathlib import Path

import pytest

from cosine_p2p.storage.state_file import StateFile
from tests.full_disk import full_disk


def state(path: Path) -> StateFile:
    return StateFile("unused", max_bytes=64, file=path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 60, '{"a": "' + "x" * 64 + '"}'])
def test_a_broken_file_is_empty_and_logged(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_full_disk_keeps_the_file_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = state(tmp_path / "deep" / "state.json")
    file.write({"a": 1})
    with full_disk(file_bytes=5):
        for number in range(3):
            file.write({"a": number, "b": number})
    assert file.read() == {"a": 1}
    assert [path.name for path in file.path.parent.iterdir()] == ["state.json"], "no draft is left"
    [record] = caplog.records
    assert record.getMessage().startswith(f"{file.path} cannot be written (File too large) and stays as it was")
    file.write({"b": 2})
    assert file.read() == {"b": 2}
    with full_disk(file_bytes=5):
        file.write({"a": 1, "b": 2})
    assert len(caplog.records) == 2, "a second time is news"
