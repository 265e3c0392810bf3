"""Peers that failed come last for a while, and measured speeds count; both fade, and no file breaks them."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.mandates import USELESS_TOKENS, Mandates
from cosine_p2p.trust.peer_memory import (
    FAILURES_FORGOTTEN_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    NEWEST_WEIGHT,
    PREFILL_DECAY,
    SPEEDS_FORGOTTEN_S,
    PeerFailures,
    PeerSpeeds,
    UsualSpeeds,
)
from cosine_protocol.errors import ErrorCode, PeerError, PeerLost
from tests.cosine_p2p.samples import identity_of


def test_a_peer_that_fails_is_avoided_each_time_for_twice_as_long_until_it_serves_or_that_is_long_ago() -> None:
    failures = PeerFailures()
    failures.note_failed("a", now_s=0.0)
    assert failures.avoided(0.0) == {"a"} and failures.avoided(FIRST_PAUSE_S) == frozenset()
    failures.note_failed("a", now_s=100.0)
    assert failures.avoided(100.0 + 1.9 * FIRST_PAUSE_S) == {"a"}
    assert failures.avoided(100.0 + 2.0 * FIRST_PAUSE_S) == frozenset()
    later_s = 100.0 + FAILURES_FORGOTTEN_S
    failures.note_failed("a", now_s=later_s)
    assert failures.avoided(later_s + FIRST_PAUSE_S) == frozenset()
    failures.note_served("a")
    assert failures.avoided(later_s) == frozenset()


def test_a_verifier_that_is_busy_or_leaves_has_not_failed() -> None:
    failures = PeerFailures()
    failures.note_error("busy", PeerError(ErrorCode.OVERLOADED, "no place"), now_s=0.0)
    failures.note_error("broken", PeerError(ErrorCode.INTERNAL, "oh"), now_s=0.0)
    failures.note_error("lost", PeerLost("lost", "it is gone"), now_s=0.0)
    assert failures.avoided(0.0) == {"broken", "lost"}


def test_a_mandate_whose_drafters_bring_nothing_for_long_is_a_failure() -> None:
    mandates = Mandates(identity_of(1), lambda: 0.0)
    for drafted in (0, 1, 0, 0):
        assert "delegate" not in mandates.failures.avoided(0.0)
        mandates.note_use("delegate", tokens=USELESS_TOKENS // 2, drafted=drafted, now_s=0.0)
    assert "delegate" in mandates.failures.avoided(0.0)


def test_another_process_goes_on_with_the_failures() -> None:
    failures, later = PeerFailures(), PeerFailures()
    failures.note_failed("a", now_s=1000.0)
    later.restore(failures.state(1000.0), now_s=5.0, away_s=0.5 * FIRST_PAUSE_S)
    assert later.avoided(5.0) == {"a"} and later.avoided(5.0 + 0.5 * FIRST_PAUSE_S) == frozenset()
    later.note_failed("a", now_s=5.0)
    assert later.avoided(5.0 + 1.9 * FIRST_PAUSE_S) == {"a"}


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        ["a"],
        [["a", 1, 60.0]],
        [["a", 0, 60.0, 0.0]],
        [["a", 1, math.inf, 0.0]],
        [["a", 1, 60.0, math.nan]],
    ],
)
def test_failures_that_are_broken_are_left_out(broken: Any) -> None:
    failures = PeerFailures()
    failures.restore(broken, now_s=0.0, away_s=0.0)
    assert failures.avoided(0.0) == frozenset()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e5)), max_size=60))
def test_nobody_is_avoided_for_longer_than_the_longest_pause(steps: list[tuple[str, float]]) -> None:
    failures, now_s = PeerFailures(), 0.0
    for peer_id, pause_s in steps:
        now_s += pause_s
        failures.note_failed(peer_id, now_s=now_s)
        assert peer_id in failures.avoided(now_s)
    assert failures.avoided(now_s + LONGEST_PAUSE_S) == frozenset()


def test_passes_are_averaged_the_slowest_prefill_fades_and_the_usual_speed_is_the_median() -> None:
    speeds = PeerSpeeds()
    speeds.note_pass("a", 0.1, now_s=0.0)
    speeds.note_pass("a", 0.2, now_s=1.0)
    assert speeds.passes_s(["a", "b"], now_s=1.0) == {"a": pytest.approx(0.1 + NEWEST_WEIGHT * 0.1)}
    for token_s in (0.01, 0.0, 0.0):
        speeds.note_prefill("a", token_s, now_s=1.0)
    assert speeds.usual("a", now_s=1.0).prefill_token_s == pytest.approx(0.01 * PREFILL_DECAY**2)
    for peer_id, pass_s in zip("bcde", (0.06, 3.5, 0.09, 0.01), strict=True):
        speeds.note_pass(peer_id, pass_s, now_s=1.0)
    assert speeds.usual("bcd", now_s=1.0).pass_s == 0.09
    assert speeds.usual("yz", now_s=1.0) == UsualSpeeds()


def test_another_process_goes_on_with_the_speeds() -> None:
    speeds, later = PeerSpeeds(), PeerSpeeds()
    speeds.note_pass("a", 1.0, now_s=100.0)
    speeds.note_prefill("b", 0.1, now_s=160.0)
    later.restore(speeds.state(160.0), now_s=5.0, away_s=SPEEDS_FORGOTTEN_S - 61.0)
    assert later.usual("ab", now_s=5.0) == UsualSpeeds(pass_s=1.0, prefill_token_s=0.1)
    assert later.usual("ab", now_s=7.0) == UsualSpeeds(prefill_token_s=0.1)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {"a": 1},
        [["a", 1.0, None]],
        [[5, 1.0, None, 0.0]],
        [["a", -1.0, None, 0.0]],
        [["a", math.nan, None, 0.0]],
        [["a", 1e9, None, 0.0]],
        [["a", 1.0, None, math.inf]],
        [["a", 1.0, None, -5.0]],
    ],
)
def test_speeds_that_are_broken_are_left_out(broken: Any) -> None:
    speeds = PeerSpeeds()
    speeds.restore(broken, now_s=0.0, away_s=0.0)
    assert speeds.state(0.0) == []


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=30))
def test_an_average_lies_among_what_was_measured(passes_s: list[float]) -> None:
    speeds = PeerSpeeds()
    for pass_s in passes_s:
        speeds.note_pass("a", pass_s, now_s=0.0)
    average_s = speeds.passes_s("a", now_s=0.0)["a"]
    assert min(passes_s) * (1 - 1e-9) <= average_s <= max(passes_s) * (1 + 1e-9)
