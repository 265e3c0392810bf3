"""The configuration file."""

from pathlib import Path

import pytest

from cosine_node.doctor.machine import judge_configuration


@pytest.mark.parametrize(
    ("content", "is_named", "unknown", "status", "part"),
    [
        ("[join]\n", True, [], "ok", "is read"),
        ("[join]\nmodle = 1\n", False, ["join.modle"], "warning", "join.modle"),
        ("[join\n", False, [], "failure", "line 1"),
        (None, True, [], "failure", "there is no file"),
        (None, False, [], "ok", "the command line"),
    ],
)
def test_a_file_is_judged_by_whether_it_can_be_read(
    tmp_path: Path, content: str | None, is_named: bool, unknown: list[str], status: str, part: str
) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_text(content)
    found = judge_configuration(file, is_named=is_named, unknown=unknown)
    assert (found.status, part in found.found, str(file) in found.found + found.fix) == (status, True, True)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert judge_configuration(tmp_path, is_named=True, unknown=[]).status == "failure"
