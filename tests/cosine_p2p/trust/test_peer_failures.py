"""Peers that failed come last for a while, longer each time, and are never forgotten for good or for ever."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.peer_memory import (
    FAILURES_FORGOTTEN_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_PEERS,
    PeerFailures,
)


def test_a_peer_that_failed_is_avoided_for_a_while() -> None:
    failures = PeerFailures()
    failures.note_failed("a", now_s=0.0)
    assert failures.avoided(0.0) == {"a"} and failures.avoided(FIRST_PAUSE_S) == frozenset()


def test_one_that_fails_again_is_avoided_twice_as_long() -> None:
    failures = PeerFailures()
    failures.note_failed("a", now_s=0.0)
    failures.note_failed("a", now_s=100.0)
    assert failures.avoided(100.0 + 1.9 * FIRST_PAUSE_S) == {"a"}
    assert failures.avoided(100.0 + 2.0 * FIRST_PAUSE_S) == frozenset()


def test_old_failures_do_not_count() -> None:
    failures = PeerFailures()
    failures.note_failed("a", now_s=0.0)
    failures.note_failed("a", now_s=FAILURES_FORGOTTEN_S)
    assert failures.avoided(FAILURES_FORGOTTEN_S + FIRST_PAUSE_S) == frozenset()


def test_one_that_has_served_begins_anew() -> None:
    failures = PeerFailures()
    failures.note_failed("a", now_s=0.0)
    failures.note_served("a")
    assert failures.avoided(0.0) == frozenset()


def test_the_oldest_failures_are_forgotten_first() -> None:
    failures = PeerFailures()
    for number in range(MAX_PEERS + 1):
        failures.note_failed(f"peer {number}", now_s=0.0)
    avoided = failures.avoided(0.0)
    assert len(avoided) == MAX_PEERS and "peer 0" not in avoided


def test_another_process_goes_on_where_this_one_ended() -> None:
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
def test_what_is_broken_is_left_out(broken: Any) -> None:
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
