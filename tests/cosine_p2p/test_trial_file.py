"""What was measured is there for the next process, and a file that is not ours is as good as none."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.saved_state import MAX_FILE_BYTES, TrialFile
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.strategy.trial_run import TrialRun

WAYS = (3, 1, 0)


def measured() -> SpeedTrials:
    """Trials in which no drafters turned out to be the fastest way."""
    trials = SpeedTrials(WAYS)
    trial = trials.find("verifier", 0.8)
    assert trial is not None
    trial.expect(0, 100.0)
    run = TrialRun(trial, 400)
    while run.left_tokens > 300:
        run.note(tokens=1, drafted=0, worth=1, seconds=0.01 if run.way == 0 else 0.03)
    run.end()
    assert trial.way == 0
    return trials


def read(file: Path) -> SpeedTrials:
    trials = SpeedTrials(WAYS)
    TrialFile(file).read_into({"cosine": trials})
    return trials


def test_the_next_process_begins_where_this_one_ended(tmp_path: Path) -> None:
    file, trials = tmp_path / "state" / "trials.json", measured()
    TrialFile(file).write({"cosine": trials, "plain": SpeedTrials(())})
    again = read(file)
    assert again.state() == trials.state()
    found = again.find("verifier", 0.8)
    assert found is not None and found.way == 0
    assert found.measured().keys() == {3}


def test_a_strategy_that_is_gone_and_other_ways_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "trials.json"
    TrialFile(file).write({"gone": measured(), "cosine": measured()})
    other = SpeedTrials((4, 0))
    TrialFile(file).read_into({"cosine": other})
    assert other.state() == []


@pytest.mark.parametrize(
    "change",
    [
        {"way": 7},
        {"way": None},
        {"gains": []},
        {"gains": {"3": [1.0], "1": [0.0, 0.0, 0.0]}},
        {"gains": {"3": [float("nan"), 0.0, 0.0], "1": [0.0, 0.0, 0.0]}},
        {"gains": {"3": [1.0, float("inf"), 0.0], "1": [0.0, 0.0, 0.0]}},
        {"pause": 0},
        {"stretches": -1},
        {"total_s": -1.0},
        {"spent_s": float("inf")},
        {"temperature": "hot"},
        {"server": 5},
    ],
)
def test_a_broken_trial_is_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "trials.json"
    [state] = measured().state()
    file.write_text(json.dumps({"cosine": [state | change]}), "utf-8")
    assert read(file).state() == []
    file.write_text(json.dumps({"cosine": [state | change, state]}), "utf-8")
    assert len(read(file).state()) == 1


BROKEN = ("", "[]", "null", "{", '{"cosine": 5}', "[" * 100_000, " " * (MAX_FILE_BYTES + 1))


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_is_not_ours_holds_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trials.json"
    file.write_text(text, "utf-8")
    assert read(file).state() == []
