"""Results are rounded wherever numbers stand, and written where nobody made a folder yet."""

import json
from pathlib import Path

from cosine_lab.commands.results import rounded, write_result


def test_numbers_are_rounded_wherever_they_stand() -> None:
    assert rounded({"a": [1.23456789, (2.0,)], "n": 1234567, "s": "x"}) == {
        "a": [1.23457, [2.0]],
        "n": 1234567,
        "s": "x",
    }


def test_a_result_is_written_into_a_new_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / "here.json"
    write_result(file, {"name": "here"})
    assert json.loads(file.read_text("utf-8")) == {"name": "here"}
