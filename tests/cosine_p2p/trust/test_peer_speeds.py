"""What was measured of peers: averaged, forgotten in time, and never taken from a broken file."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.peer_memory import (
    MAX_PEERS,
    NEWEST_WEIGHT,
    PREFILL_DECAY,
    SPEEDS_FORGOTTEN_S,
    PeerSpeeds,
    UsualSpeeds,
)


def test_passes_are_averaged() -> None:
    speeds = PeerSpeeds()
    speeds.note_pass("a", 0.1, now_s=0.0)
    speeds.note_pass("a", 0.2, now_s=1.0)
    assert speeds.passes_s(["a", "b"], now_s=1.0) == {"a": pytest.approx(0.1 + NEWEST_WEIGHT * 0.1)}


def test_the_slowest_prefill_counts_and_fades() -> None:
    speeds = PeerSpeeds()
    for token_s in (0.01, 0.0, 0.0):
        speeds.note_prefill("a", token_s, now_s=0.0)
    assert speeds.usual("a", now_s=0.0).prefill_token_s == pytest.approx(0.01 * PREFILL_DECAY**2)


def test_the_usual_speed_is_the_median_of_those_asked_for() -> None:
    speeds = PeerSpeeds()
    for peer_id, pass_s in zip("abcd", (0.06, 3.5, 0.09, 0.01), strict=True):
        speeds.note_pass(peer_id, pass_s, now_s=0.0)
    assert speeds.usual("abc", now_s=0.0).pass_s == 0.09
    assert speeds.usual("ef", now_s=0.0) == UsualSpeeds()


def test_old_measurements_do_not_count() -> None:
    speeds = PeerSpeeds()
    speeds.note_pass("a", 9.0, now_s=0.0)
    assert speeds.passes_s("a", now_s=SPEEDS_FORGOTTEN_S) == {}
    speeds.note_pass("a", 1.0, now_s=SPEEDS_FORGOTTEN_S)
    assert speeds.passes_s("a", now_s=SPEEDS_FORGOTTEN_S) == {"a": 1.0}


def test_those_measured_longest_ago_are_forgotten_first() -> None:
    speeds = PeerSpeeds()
    for number in range(MAX_PEERS):
        speeds.note_pass(str(number), 1.0, now_s=0.0)
    speeds.note_pass("0", 1.0, now_s=1.0)
    speeds.note_pass("new", 1.0, now_s=1.0)
    assert set(speeds.passes_s(["0", "1", "new"], now_s=1.0)) == {"0", "new"}


def test_another_process_goes_on_where_this_one_ended() -> None:
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
def test_what_is_broken_is_left_out(broken: Any) -> None:
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


def test_those_that_were_measured_lately_are_known() -> None:
    speeds = PeerSpeeds()
    speeds.note_pass("a", 0.1, now_s=0.0)
    speeds.note_prefill("b", 0.1, now_s=SPEEDS_FORGOTTEN_S - 1)
    assert speeds.measured(now_s=SPEEDS_FORGOTTEN_S - 1) == {"a", "b"}
    assert speeds.measured(now_s=SPEEDS_FORGOTTEN_S) == {"b"}
