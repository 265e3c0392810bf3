"""The time of a pass that a node tells follows its real passes, by their median and not too often."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.curve import CostCurve
from cosine_node.passes.runner import MIN_CHANGE, MIN_INTERVAL_S, MIN_PASSES, WINDOW_PASSES, PassSpeed

CURVE = CostCurve(((1, 0.04), (64, 0.08)))
START_S = 1000.0
LATER_S = START_S + MIN_INTERVAL_S


def speed_after(*ratios: float, tokens: int = 1) -> PassSpeed:
    """After passes that took so many times what the curve says."""
    speed = PassSpeed(CURVE, now_s=START_S)
    for ratio in ratios:
        speed.note(tokens=tokens, elapsed_s=ratio * CURVE.seconds(tokens))
    return speed


def test_a_busy_start_is_corrected_by_the_passes_that_follow() -> None:
    speed = speed_after(*[0.25] * MIN_PASSES, tokens=16)
    assert speed.pass_s == 0.04
    assert speed.refresh(LATER_S)
    assert round(speed.pass_s, 6) == 0.01
    assert not speed.refresh(LATER_S + 2 * MIN_INTERVAL_S)


def test_it_is_told_only_now_and_then() -> None:
    speed = speed_after(*[2.0] * MIN_PASSES)
    assert not speed.refresh(LATER_S - 0.1)
    assert speed.refresh(LATER_S)
    for _ in range(WINDOW_PASSES):
        speed.note(tokens=1, elapsed_s=0.04)
    assert not speed.refresh(LATER_S + MIN_INTERVAL_S - 0.1)
    assert speed.refresh(LATER_S + MIN_INTERVAL_S)
    assert round(speed.pass_s, 6) == 0.04


def test_few_passes_say_nothing() -> None:
    assert not speed_after(*[3.0] * (MIN_PASSES - 1)).refresh(LATER_S)


def test_some_passes_that_stood_still_say_nothing() -> None:
    assert not speed_after(*[1.0] * MIN_PASSES, *[500.0] * (MIN_PASSES - 1)).refresh(LATER_S)


def test_passes_over_more_tokens_than_were_measured_say_nothing() -> None:
    assert not speed_after(*[9.0] * MIN_PASSES, tokens=65).refresh(LATER_S)


def test_a_change_that_no_link_would_show_is_no_news() -> None:
    speed = PassSpeed(CostCurve(((1, 1e-5),)), now_s=START_S)
    for _ in range(MIN_PASSES):
        speed.note(tokens=1, elapsed_s=9e-5)
    assert not speed.refresh(LATER_S)


def test_a_device_without_cost_is_left_alone() -> None:
    speed = PassSpeed(CostCurve(((1, 0.0),)), now_s=START_S)
    for _ in range(MIN_PASSES):
        speed.note(tokens=1, elapsed_s=1.0)
    assert not speed.refresh(LATER_S)


@given(st.lists(st.floats(0.05, 20.0), max_size=300), st.floats(0.0, 300.0))
def test_what_is_told_has_changed_by_a_fifth_or_not_at_all(ratios: list[float], after_s: float) -> None:
    speed = speed_after(*ratios)
    has_changed = speed.refresh(START_S + after_s)
    assert has_changed is (speed.pass_s != 0.04)
    assert not has_changed or abs(speed.pass_s / 0.04 - 1) >= MIN_CHANGE * 0.999
    assert 0.05 * 0.04 * 0.999 <= speed.pass_s <= 20 * 0.04 * 1.001
