"""How far ahead to draft follows from delays and acceptance; below a gain of 2 % nobody drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.speculation.latency_model import (
    MAX_DEPTH_TOKENS,
    MIN_DEPTH_TOKENS,
    MIN_GAIN,
    Latencies,
    expected_gain,
    is_close,
    plan_drafts,
)

SECONDS = st.floats(0.0, 2.0)


def latencies(*, rtt_s: float = 0.02, token_s: float = 0.006, pass_s: float = 0.06) -> Latencies:
    return Latencies(plain_pass_s=0.06, pass_s=pass_s, token_s=token_s, verifier_rtt_s=rtt_s, drafter_rtt_s=rtt_s)


@given(rtt_s=SECONDS, token_s=SECONDS, pass_s=SECONDS, acceptance=st.floats(0.0, 1.0))
def test_running_ahead_with_fast_drafts_never_loses(
    rtt_s: float, token_s: float, pass_s: float, acceptance: float
) -> None:
    fast = latencies(rtt_s=rtt_s, token_s=min(token_s, pass_s), pass_s=pass_s)
    assert expected_gain(fast, acceptance=acceptance) >= 1.0 - 1e-9


@given(rtt_s=SECONDS, acceptance=st.tuples(st.floats(0.0, 0.97), st.floats(0.0, 0.97)))
def test_better_drafts_gain_more(rtt_s: float, acceptance: tuple[float, float]) -> None:
    worse, better = sorted(acceptance)
    quick = latencies(rtt_s=rtt_s, token_s=0.001)
    assert expected_gain(quick, acceptance=worse) <= expected_gain(quick, acceptance=better) + 1e-9


@given(acceptance=st.floats(0.0, 0.97), rtts_s=st.tuples(SECONDS, SECONDS))
def test_distance_costs(acceptance: float, rtts_s: tuple[float, float]) -> None:
    near, far = sorted(rtts_s)
    gains = [expected_gain(latencies(rtt_s=rtt_s), acceptance=acceptance) for rtt_s in (near, far)]
    assert gains[1] <= gains[0] + 1e-9


@given(rtt_s=SECONDS, token_s=SECONDS, pass_s=SECONDS, acceptance=st.floats(0.0, 1.0))
def test_a_plan_is_bounded_or_nobody_drafts(rtt_s: float, token_s: float, pass_s: float, acceptance: float) -> None:
    plan = plan_drafts(latencies(rtt_s=rtt_s, token_s=token_s, pass_s=pass_s), acceptance=acceptance)
    if plan.gain < MIN_GAIN:
        assert (plan.depth_tokens, plan.width_nodes, plan.window_nodes) == (0, 0, 0)
        assert "not worth it" in plan.why
    else:
        assert MIN_DEPTH_TOKENS <= plan.depth_tokens <= MAX_DEPTH_TOKENS
        assert plan.window_nodes >= plan.depth_tokens >= plan.width_nodes > 0


def test_hopeless_drafts_are_not_asked_for() -> None:
    assert plan_drafts(latencies(rtt_s=0.3), acceptance=0.05).depth_tokens == 0
    assert plan_drafts(latencies(rtt_s=0.3), acceptance=0.8).depth_tokens > 0


def test_a_drafter_slower_than_the_target_is_not_asked() -> None:
    assert plan_drafts(latencies(token_s=0.08), acceptance=0.9).depth_tokens == 0


def test_a_busy_verifier_gets_narrower_trees() -> None:
    alone, busy = (plan_drafts(latencies(pass_s=pass_s), acceptance=0.8) for pass_s in (0.06, 0.12))
    assert busy.width_nodes < alone.width_nodes


def test_the_reason_names_what_was_measured() -> None:
    why = plan_drafts(latencies(), acceptance=0.8).why
    assert "acceptance 0.80" in why
    assert "40 ms to a drafter and back" in why
    assert "60 ms a pass" in why


@pytest.mark.parametrize(("acceptance", "told"), [(0.81, False), (0.95, True)])
def test_small_changes_are_not_told(acceptance: float, told: bool) -> None:
    before, after = (plan_drafts(latencies(), acceptance=a) for a in (0.8, acceptance))
    assert is_close(after, before) is not told
