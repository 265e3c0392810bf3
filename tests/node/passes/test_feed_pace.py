"""The pace of passes through a chain of stages."""

import math

import pytest

from cosine_engine.curve import CostCurve
from cosine_node.passes.feed_pace import ChainPace

QUICK = CostCurve(((1, 0.01), (8, 0.02)))
SLOW = CostCurve(((1, 0.02), (8, 0.03)))
WAY_S = 0.1


def pace_of(most_under_way: int | None = None) -> ChainPace:
    return ChainPace([QUICK, SLOW, QUICK], most_under_way=most_under_way)


def pass_through(pace: ChainPace, now_s: float, *, queued_s: float = 0.0) -> None:
    """End a pass with the given time in queues."""
    taken_s = WAY_S + sum(curve.seconds(1) for curve in (QUICK, SLOW, QUICK)) + queued_s
    pace.note_ended(now_s, begun_s=now_s - taken_s, tokens=1)


@pytest.mark.parametrize(("tokens", "period_s"), [(1, 0.02), (8, 0.03)])
def test_the_next_pass_begins_when_the_slowest_stage_is_free(tokens: int, period_s: float) -> None:
    pace = pace_of()
    assert pace.wait_s(5.0, under_way=0) == 0.0
    pace.note_begun(5.0, tokens=tokens)
    assert pace.wait_s(5.0, under_way=1) == pytest.approx(period_s)
    assert pace.wait_s(5.01, under_way=1) == pytest.approx(period_s - 0.01)
    assert pace.wait_s(6.0, under_way=1) == 0.0


def test_a_pass_that_ended_before_its_time_lets_the_next_one_begin() -> None:
    pace = pace_of()
    pace.note_begun(5.0, tokens=8)
    assert pace.wait_s(5.001, under_way=1) > 0.0
    # Nothing would wake who waited: no pass under way is to end.
    assert pace.wait_s(5.001, under_way=0) == 0.0


def test_as_many_are_under_way_as_fit_into_the_way_round() -> None:
    pace = pace_of()
    pass_through(pace, 1.0)
    assert pace.traversal_s(1) == pytest.approx(WAY_S + 0.04)
    # 0.14 s all the way round at 0.02 s for each make seven, and rounding eight.
    assert pace.wait_s(2.0, under_way=7) == 0.0
    assert pace.wait_s(2.0, under_way=9) == math.inf
    assert pace_of(most_under_way=1).wait_s(2.0, under_way=1) == math.inf


def test_stages_that_are_slower_than_they_said_are_fed_more_slowly_and_then_as_before() -> None:
    pace = pace_of()
    pass_through(pace, 1.0)
    for number in range(20):
        pass_through(pace, 2.0 + 0.1 * number, queued_s=0.1)
    slow_s = pace.period_s(1)
    assert slow_s > 1.5 * SLOW.seconds(1)
    for number in range(200):
        pass_through(pace, 30.0 + number)
    assert pace.period_s(1) == pytest.approx(SLOW.seconds(1))


def test_no_queue_of_half_a_pass_stays() -> None:
    """Stages that take a little longer for a pass than they say would otherwise delay all passes by it."""
    pace = pace_of()
    pass_through(pace, 1.0)
    for number in range(20):
        pass_through(pace, 2.0 + 0.02 * number, queued_s=SLOW.seconds(1) / 2)
    assert pace.period_s(1) > 1.03 * SLOW.seconds(1)


def test_passes_far_shorter_than_a_traversal_may_be_delayed_a_little() -> None:
    """A busy machine answers 10 ms late now and then; only a queue slows the feed, to the rate of its answers."""
    light = CostCurve(((1, 0.003), (8, 0.006)))
    pace = ChainPace([light] * 3)
    taken_s = 0.12 + 3 * light.seconds(1)
    for number in range(100):
        now_s = 1.0 + number * 0.005
        pace.note_ended(now_s, begun_s=now_s - taken_s - 0.01 * (number % 2), tokens=1)
    assert pace.period_s(1) == light.seconds(1)
    for number in range(100):
        now_s = 2.0 + number * 0.008
        pace.note_ended(now_s, begun_s=now_s - taken_s - 0.005 * number, tokens=1)
    assert 0.008 < pace.period_s(1) < 0.009
    pace.replace_stages([light] * 3)
    for number in range(8):
        now_s = 2.9 + number * 0.003
        pace.note_ended(now_s, begun_s=now_s - taken_s - 0.05 * (number > 0), tokens=1)
    assert pace.period_s(1) < 1.1 * light.seconds(1), "other stages are not as slow"
    # Late answers in bunches say the same rate.
    for number in range(100):
        now_s = 3.0 + number // 5 * 0.04
        pace.note_ended(now_s, begun_s=now_s - taken_s - 0.05, tokens=1)
    assert 0.006 < pace.period_s(1) < 0.011


@pytest.mark.parametrize(
    # A stage takes 20 ms for a token and 0.3 ms for each more; a line of 1 Gbit/s, 100 and 10 with 8 KiB a token.
    ("token_s", "tokens"),
    [(0.00006, 256), (0.00065, 64), (0.0065, 16)],
)
def test_the_passes_of_a_prompt_are_the_shorter_the_slower_a_line_is(token_s: float, tokens: int) -> None:
    curve = CostCurve(((1, 0.02), (512, 0.18)))
    pace = ChainPace([curve] * 3, token_s=token_s)
    assert pace.chunk_tokens(2000, most=512) == tokens
    # They follow each other as fast as the line takes them, whatever stages would.
    assert pace.period_s(512) == pytest.approx(max(0.18, 512 * token_s))
