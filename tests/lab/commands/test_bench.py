"""`cosine-node bench`: files, one JSON object, exit codes, and sentences for what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from cosine_node.cli import main
from tests.docs.pages import DOCS


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.mark.thorough
def test_an_experiment_writes_its_result_and_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "benchmarks"
    assert exit_of("ring", "--quick", "--processes", "1", "--prompts", "1", "--out", str(out), "--json") == 0
    written = json.loads((out / "ring.json").read_text("utf-8"))
    assert written == json.loads(capsys.readouterr().out)
    assert {"name", "what", "command", "setup", "rows", "findings"} <= written.keys()
    assert written["command"] == "cosine-node bench ring --quick --prompts 1"
    assert {row["prompts"] for row in written["rows"]} == {1}


def test_the_report_is_written_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "benchmarks"
    results.mkdir()
    shutil.copy(DOCS / "benchmarks" / "ring.json", results)
    assert exit_of("report", "--json", "--out", str(results)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"page": str(tmp_path / "benchmarks.md"), "figures": [str(results / "ring.svg")]}
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert text.startswith("# Benchmarks\n") and "## A model in parts" in text and "rtt.json" not in text
    assert (results / "ring.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["astrology"], "Unknown experiment 'astrology'"),
        (["rtt", "--processes", "0"], "--processes must be 1 or more."),
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
