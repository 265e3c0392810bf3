"""What a head has found of stages is there for its next run, as old as it is by then."""

import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_node.chains.comparison import Contradiction
from cosine_node.chains.disputes import MAX_DISPUTES, UNDECIDED_S
from cosine_node.chains.findings import MAX_FILE_BYTES, VERSION, StageFindings
from cosine_node.chains.stage_speeds import FORGOTTEN_S, MAX_STAGES, MAX_SUSPICIONS, SUSPECTED_S
from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.peer_memory import FIRST_PAUSE_S, MAX_PEERS
from cosine_p2p.trust.standing import FORGOTTEN_S as STANDING_S
from cosine_p2p.trust.standing import PROVEN
from cosine_protocol.stage_messages import LayerRange

LAYERS: Final = LayerRange(first=8, end=16, layers=24)
WRITTEN_S: Final = 50.0
AWAY_S: Final = 20.0
NOW_S: Final = 3.0
"""In the next run, whose clock begins anew."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "stages.json"


def opened(file: Path, *, wall_s: float) -> StageFindings:
    return StageFindings(StateFile("", max_bytes=MAX_FILE_BYTES, file=file), wall_s=lambda: wall_s)


def write_some(file: Path, *, age_s: float = 0.0) -> None:
    """A run that finds something of each kind, and ends so much later."""
    found, at_s = opened(file, wall_s=1e9), {"now_s": WRITTEN_S - age_s}
    found.disputes.note_right("right", **at_s)
    found.disputes.note_wrong(["liar"], LAYERS, **at_s)
    for ones, others, is_link in (("a", "b", False), ("c", "d", True)):
        contradiction = Contradiction(ones=(ones,), others=(others,), layers=LAYERS, place=(0, 16), is_link=is_link)
        found.disputes.judge(contradiction, **at_s)
    for _ in range(5):
        found.speeds.note("slow", pass_s=2.0, expected_s=0.02, **at_s)
        found.speeds.note(("slow", "next"), pass_s=0.5, expected_s=0.0, **at_s)
    found.suspicions.note(["alone"], **at_s)
    found.failures.note_failed("refuses", **at_s)
    found.write(now_s=WRITTEN_S)


def next_run(file: Path, *, wall_s: float = 1e9 + AWAY_S) -> StageFindings:
    found = opened(file, wall_s=wall_s)
    found.read(now_s=NOW_S)
    return found


def knows_nothing(found: StageFindings) -> bool:
    return (
        not found.disputes.set_aside(NOW_S)
        and not found.disputes.open(NOW_S)
        and not found.suspicions.weights(now_s=NOW_S)
        and not found.failures.avoided(NOW_S)
        and found.speeds.pass_s("slow", now_s=NOW_S) is None
    )


def test_the_next_run_knows_who_lied_who_is_slow_and_who_refused(file: Path) -> None:
    write_some(file)
    found = next_run(file)
    assert found.disputes.standings.rejected(NOW_S) == {"liar"}
    assert found.disputes.are_checked(["right"], now_s=NOW_S)
    assert found.disputes.set_aside(NOW_S) == {"liar", "a", "b"}
    assert str(found.disputes.open(NOW_S)[0]) == "Stages a and b disagree about layers 8:16 of 24"
    assert found.disputes.apart(NOW_S) == {frozenset("cd")}
    assert found.speeds.pass_s("slow", now_s=NOW_S) == 2.0 and found.speeds.is_deceived(now_s=NOW_S)
    assert found.speeds.pass_s(("slow", "next"), now_s=NOW_S) == 0.5
    assert found.suspicions.weights(now_s=NOW_S) == {"alone": 2}
    assert found.failures.avoided(NOW_S) == {"refuses"}


def test_delays_begin_anew_since_only_those_of_the_present_chain_count(file: Path) -> None:
    write_some(file)
    assert not next_run(file).speeds.has_cost_much("slow", now_s=NOW_S)


def test_what_is_found_is_forgotten_after_as_long_as_within_one_run(file: Path) -> None:
    write_some(file)
    found = next_run(file)

    def later_s(after_s: float) -> float:
        return NOW_S + after_s - AWAY_S

    assert not found.failures.avoided(later_s(FIRST_PAUSE_S))
    assert not found.suspicions.weights(now_s=later_s(SUSPECTED_S))
    assert found.speeds.pass_s("slow", now_s=later_s(FORGOTTEN_S)) is None
    assert found.disputes.set_aside(later_s(UNDECIDED_S)) == {"liar"} and not found.disputes.apart(
        later_s(UNDECIDED_S)
    )
    assert not found.disputes.set_aside(later_s(STANDING_S))


def test_what_the_next_run_keeps_again_is_no_younger(file: Path) -> None:
    write_some(file)
    next_run(file).write(now_s=NOW_S)
    found = next_run(file, wall_s=1e9 + 2 * AWAY_S)
    assert found.disputes.set_aside(NOW_S + UNDECIDED_S - 2 * AWAY_S - 1) == {"liar", "a", "b"}
    assert found.disputes.set_aside(NOW_S + UNDECIDED_S - 2 * AWAY_S) == {"liar"}


def test_a_clock_that_was_put_back_makes_nothing_younger(file: Path) -> None:
    write_some(file, age_s=1.0)
    found = next_run(file, wall_s=0.0)
    assert found.failures.avoided(NOW_S) == {"refuses"}
    assert not found.failures.avoided(NOW_S + FIRST_PAUSE_S - 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is broken and counts as empty"),
        ('{"version": 1, "kept', "is broken and counts as empty"),
        (" " * (MAX_FILE_BYTES + 1), "is broken and counts as empty"),
        (json.dumps({"version": VERSION + 1, "kept_at_s": 1.0}), "is not of version 1 and counts as empty"),
        (json.dumps({"kept_at_s": 1.0}), "is not of version 1 and counts as empty"),
    ],
    ids=["empty", "half", "large", "newer", "none"],
)
def test_a_file_that_cannot_be_read_is_told_once_and_replaced(
    file: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    with caplog.at_level(logging.WARNING):
        assert knows_nothing(next_run(file))
    [record] = caplog.records
    assert record.getMessage() == f"{file} {said}; what is noted next replaces it"
    write_some(file)
    assert not knows_nothing(next_run(file))


BROKEN: Final[list[Any]] = [
    5,
    [5],
    [[]],
    [["a", 1e999, 0.0]],
    [["a", 1, float("nan")]],
    [["a", 7, -1.0]],
    [[["a", "b", "c"], 0.1, False, 0.0]],
    [[["a"], float("nan"), False, 0.0]],
    {"standings": 1, "open": [[["a", 5], [0, 1, 2], False, 0.0]]},
    {"standings": [["a", 10**9, 0.0]], "open": [[["a"], [2, 1, 2], False, 0.0]]},
]


@pytest.mark.parametrize("value", BROKEN, ids=str)
def test_what_is_broken_in_a_file_is_left_out(file: Path, value: Any) -> None:
    write_some(file)
    kept = json.loads(file.read_text("utf-8"))
    for part in ("disputes", "speeds", "suspicions", "failures"):
        file.write_text(json.dumps(kept | {part: value}), "utf-8")
        found = next_run(file)
        assert found.disputes.set_aside(NOW_S) <= {"liar", "a", "b"} and not knows_nothing(found)
    file.write_text(json.dumps(dict.fromkeys(kept, value) | {"version": VERSION, "kept_at_s": 1e9}), "utf-8")
    assert knows_nothing(next_run(file))


def test_all_that_a_head_can_find_fits_into_the_file(file: Path) -> None:
    found = opened(file, wall_s=1e9)
    # As long as peer ids are.
    names = [f"{number:052}" for number in range(2 * MAX_PEERS)]
    for name in names:
        found.disputes.note_wrong([name], LAYERS, now_s=0.0)
        found.failures.note_failed(name, now_s=0.0)
        found.suspicions.note([name], now_s=0.0)
        found.speeds.note((name, name), pass_s=1 / 3, expected_s=0.0, now_s=0.0)
    for number in range(2 * MAX_DISPUTES):
        found.disputes.note_wrong(names[number : number + 20], LAYERS, now_s=0.0)
    for name in names[:MAX_PEERS]:
        for _ in range(PROVEN):
            found.disputes.note_right(f"{name}.", now_s=0.0)
    found.write(now_s=1 / 3)
    kept = json.loads(file.read_text("utf-8"))
    assert len(kept["speeds"]) == MAX_STAGES and len(kept["suspicions"]) == MAX_SUSPICIONS
    assert len(kept["disputes"]["open"]) == MAX_DISPUTES and len(kept["disputes"]["standings"]) == 2 * MAX_PEERS
    assert file.stat().st_size <= MAX_FILE_BYTES
