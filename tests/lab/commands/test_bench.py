"""`cosine-node bench`: files, one JSON object, exit codes, and sentences for what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_node.cli import main


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result of an experiment."""
    out = tmp_path_factory.mktemp("bench") / "deep" / "benchmarks"
    assert exit_of("ring", "--quick", "--processes", "1", "--prompts", "1", "--out", str(out)) == 0
    return out


def test_an_experiment_writes_its_result_and_the_command_that_repeats_it(results: Path) -> None:
    written: dict[str, Any] = json.loads((results / "ring.json").read_text("utf-8"))
    assert {"name", "what", "command", "setup", "rows", "findings"} <= written.keys()
    assert written["command"] == "cosine-node bench ring --quick --prompts 1"
    assert {row["prompts"] for row in written["rows"]} == {1}


@pytest.mark.thorough
def test_people_read_what_was_found_and_programs_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of("ring", "--quick", "--out", str(tmp_path)) == 0
    assert "lowest speedup: " in capsys.readouterr().out
    assert exit_of("ring", "--quick", "--json", "--out", str(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "ring.json").read_text("utf-8"))


def test_the_report_is_written_beside_the_results(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert exit_of("report", "--json", "--out", str(results)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"page": str(results.parent / "benchmarks.md"), "figures": [str(results / "ring.svg")]}
    assert (results.parent / "benchmarks.md").read_text("utf-8").startswith("# Benchmarks\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["astrology"], "There is no experiment 'astrology'"),
        (["rtt", "--processes", "0"], "--processes must be 1 or more."),
        (["rtt", "--prompts", "0"], "--prompts must be 1 or more."),
        (["report"], "There are no results in"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of(*arguments, "--out", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"Error: {sentence}")
    assert told.count("\n") == 1
