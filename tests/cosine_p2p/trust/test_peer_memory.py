"""Peers that failed are avoided for a while, and speeds are measured; both are forgotten with time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.peer_memory import (
    FAILURES_FORGOTTEN_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    NEWEST_WEIGHT,
    PREFILL_DECAY,
    PeerFailures,
    PeerSpeeds,
    UsualSpeeds,
)
from cosine_protocol.errors import ErrorCode, PeerError, PeerLost


def test_a_peer_that_fails_is_avoided_each_time_for_twice_as_long_until_it_serves_or_time_passes() -> None:
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


def test_a_busy_verifier_has_not_failed() -> None:
    failures = PeerFailures()
    failures.note_error("busy", PeerError(ErrorCode.OVERLOADED, "no place"), now_s=0.0)
    failures.note_error("broken", PeerError(ErrorCode.INTERNAL, "oh"), now_s=0.0)
    failures.note_error("lost", PeerLost("lost", "it is gone"), now_s=0.0)
    assert failures.avoided(0.0) == {"broken", "lost"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e5)), max_size=60))
def test_pauses_are_bounded(steps: list[tuple[str, float]]) -> None:
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
