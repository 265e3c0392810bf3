"""The time of each stage in the passes of a chain, also of stages that lie."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.chains.links import LATE_PASSES, EndedPass, PassTimes, StuckPass

WAY_S = 0.02


@dataclass(slots=True)
class Stage:
    """A stage that takes `pass_s` and reports `early_s` too early; one that `hides` reports no time."""

    pass_s: float
    early_s: float = 0.0
    is_silent: bool = False
    hides: bool = False
    free_s: float = field(default=0.0, init=False)


def run(stages: list[Stage], *, sent_s: list[float]) -> list[EndedPass]:
    """Simulate passes sent at these times, with reports in order of time."""
    times = PassTimes(reports=[True] * len(stages), ways_s=[WAY_S] * len(stages))
    heard: list[tuple[float, int, int, float]] = []
    answers = []
    for number, at_s in enumerate(sent_s):
        times.note_sent(number, tokens=1, now_s=at_s)
        for index, stage in enumerate(stages):
            began_s = max(at_s + WAY_S, stage.free_s)
            at_s = stage.free_s = began_s + stage.pass_s
            if not stage.is_silent:
                heard.append((at_s - stage.early_s, number, index, 0.0 if stage.hides else stage.pass_s))
        answers.append((at_s, number))
    for passed_s, number, index, held_s in sorted(heard):
        times.note_passed(index, number, held_s=held_s, passed_s=passed_s)
    for answered_s, number in answers:
        times.note_answered(number, answered_s=answered_s)
    return times.take_ended()


SPEEDS = st.floats(0.001, 0.5)
SENT = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6).map(sorted)


@given(st.lists(SPEEDS, min_size=1, max_size=5), SENT)
def test_honest_stages_are_charged_for_their_own_passes_alone(passes_s: list[float], sent_s: list[float]) -> None:
    ended = run([Stage(pass_s) for pass_s in passes_s], sent_s=sent_s)
    assert len(ended) == len(sent_s)
    for one in ended:
        assert one.at_stage_s == pytest.approx(passes_s)
        assert one.between_s == pytest.approx([0.0] * len(passes_s), abs=1e-9)


@given(st.data())
def test_the_time_of_a_slow_stage_is_charged_to_it_whatever_it_says(data: st.DataObject) -> None:
    """Or to the links to its neighbours; no other stage is charged more than its time."""
    count = data.draw(st.integers(1, 5))
    guilty = data.draw(st.integers(0, count - 1))
    stages = [Stage(0.02) for _ in range(count)]
    stages[guilty] = Stage(
        2.0,
        early_s=data.draw(st.floats(0.0, 1.99)),
        hides=data.draw(st.booleans()),
        is_silent=data.draw(st.booleans()),
    )
    for one in run(stages, sent_s=[0.0, 5.0, 10.0]):
        around_s = sum(one.between_s[guilty : guilty + 2])
        assert one.at_stage_s[guilty] + around_s == pytest.approx(2.0, abs=0.05)
        for stage in range(count):
            assert stage == guilty or one.at_stage_s[stage] <= 0.021
            assert stage in (guilty, guilty + 1) or one.between_s[stage] == pytest.approx(0.0, abs=0.001)


def times_of(*, stages: int = 3) -> PassTimes:
    return PassTimes(reports=[True] * stages, ways_s=[WAY_S] * stages)


def passed(times: PassTimes, stage: int, number: int, passed_s: float) -> None:
    times.note_passed(stage, number, held_s=0.01, passed_s=passed_s)


def test_a_stuck_pass_is_at_the_stage_that_has_not_told_of_it_or_at_the_one_before() -> None:
    times = times_of()
    assert times.stuck() is None
    times.note_sent(0, tokens=7, now_s=1.0)
    assert times.stuck() == StuckPass(7, 1.0, (0,))
    passed(times, 0, 0, 2.0)
    assert times.stuck() == StuckPass(7, 2.0, (0, 1))
    passed(times, 1, 0, 3.0)
    passed(times, 2, 0, 4.0)
    assert times.stuck() == StuckPass(7, 4.0, (2,))
    times.note_sent(1, tokens=8, now_s=1.5)
    times.note_answered(0, answered_s=5.0)
    assert times.stuck() == StuckPass(8, 2.0, (0,))
    times.note_answered(1, answered_s=6.0)
    assert times.stuck() is None


def test_a_report_is_waited_for_while_few_passes_have_overtaken_it() -> None:
    times = times_of(stages=1)
    for number in range(LATE_PASSES + 1):
        times.note_sent(number, tokens=1, now_s=float(number))
        times.note_answered(number, answered_s=number + 0.5)
    [ended] = times.take_ended()
    assert ended.at_stage_s == pytest.approx([0.5 - WAY_S])
    # Repeated reports and unknown passes are ignored.
    for number in (0, 1, 99):
        passed(times, 0, number, 1.3)
        passed(times, 0, number, 77.0)
    [ended] = times.take_ended()
    assert ended.at_stage_s == pytest.approx([0.5 - WAY_S])
