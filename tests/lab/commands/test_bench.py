"""`cosine-node bench`: files, one JSON object, exit codes, and sentences for what cannot be."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.commands.bench import EXPERIMENTS
from cosine_node.cli import main


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_an_experiment_writes_its_result_and_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "benchmarks"
    assert exit_of("acceptance", "--quick", "--json", "--out", str(out)) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "acceptance.json").read_text("utf-8"))
    assert {"name", "what", "command", "setup", "rows", "findings"} <= printed.keys()
    assert printed["command"] == "cosine-node bench acceptance --quick"


@pytest.mark.thorough
def test_people_read_the_section_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("acceptance", "--quick", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## ")
    assert "draft-code" in printed
    assert "![" not in printed


def test_options_reach_the_experiment_and_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of("acceptance", "--prompts", "1", "--processes", "1", "--json", "--out", str(tmp_path)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["prompts"] for row in printed["rows"]} == {1}
    assert printed["command"] == "cosine-node bench acceptance --prompts 1"


def test_the_report_is_written_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "benchmarks"
    assert exit_of("acceptance", "--quick", "--out", str(out)) == 0
    capsys.readouterr()
    assert exit_of("report", "--json", "--out", str(out)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"page": str(tmp_path / "benchmarks.md"), "figures": [str(out / "acceptance.svg")]}
    assert (tmp_path / "benchmarks.md").read_text("utf-8").startswith("# Benchmarks\n")


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


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    assert exit_of("rtt", "--out", str(file)) == 2
    assert "is a file" in capsys.readouterr().err


def test_figures_need_an_extra_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_of("acceptance", "--quick", "--out", str(tmp_path / "benchmarks")) == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert exit_of("report", "--out", str(tmp_path / "benchmarks")) == 2
    assert "pip install '.[lab]'" in capsys.readouterr().err


def test_strategies_are_experiments_that_can_also_be_run_alone() -> None:
    alone = {modules for modules in EXPERIMENTS.values() if len(modules) == 1}
    assert {(module,) for module in EXPERIMENTS["strategies"]} < alone
