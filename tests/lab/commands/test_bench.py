"""`cosine-node bench`: files, one JSON object, exit codes, and sentences for what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.node.cli.conftest import Run


@pytest.mark.thorough
def test_an_experiment_writes_its_result_and_the_command_that_repeats_it(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "deep" / "benchmarks"
    told = run("bench", "ring", "--quick", "--processes", "1", "--prompts", "1", "--out", str(out), "--json")
    assert told.code == 0
    written = json.loads((out / "ring.json").read_text("utf-8"))
    assert written == json.loads(told.out)
    assert {"name", "what", "command", "setup", "rows", "findings"} <= written.keys()
    assert written["command"] == "cosine-node bench ring --quick --prompts 1"
    assert {row["prompts"] for row in written["rows"]} == {1}


def test_the_report_is_written_beside_the_results(tmp_path: Path, run: Run) -> None:
    results = tmp_path / "benchmarks"
    results.mkdir()
    shutil.copy(DOCS / "benchmarks" / "ring.json", results)
    assert json.loads(run("bench", "report", "--json", "--out", str(results)).out) == {
        "page": str(tmp_path / "benchmarks.md"),
        "figures": [str(results / "ring.svg")],
    }
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert text.startswith("# Benchmarks\n") and "## A model in parts" in text and "rtt.json" not in text
    assert (results / "ring.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rtt", "--processes", "0"], "--processes must be 1 or more."),
        (["report"], "There are no results in"),
    ],
)
def test_mistakes_are_a_sentence_and_exit_2(arguments: list[str], sentence: str, tmp_path: Path, run: Run) -> None:
    told = run("bench", *arguments, "--out", str(tmp_path))
    assert told.code == 2 and told.err.startswith(f"Error: {sentence}") and told.err.count("\n") == 1
