"""A race keeps the text of each lane with its authors, and counts plain decoding at the emulated device's pace."""

from dataclasses import replace

import pytest

from cosine_node.demo.race import COPIED, Lane, Way, typical
from cosine_p2p.request.results import TARGET_SOURCE, Chunk
from tests.node.demo.generations import generation, raced


def test_a_lane_names_the_author_of_each_piece() -> None:
    lane = Lane()
    for chunk in (
        Chunk("a", (1,), TARGET_SOURCE),
        Chunk("b", (2, 3), "peer"),
        Chunk("c", (4,), TARGET_SOURCE, True),
        Chunk("d", (5,), "stranger"),
    ):
        lane.add(chunk, {"peer": "math"}, seconds=0.5)
    assert lane.pieces == [("a", TARGET_SOURCE), ("b", "math"), ("c", COPIED), ("d", "drafter")]
    assert (lane.tokens, lane.seconds) == (5, 0.5)


def test_speedups_are_against_plain_decoding() -> None:
    row = raced()
    assert row.plain_s == pytest.approx(0.64)
    assert [row.speedup(way) for way in Way] == pytest.approx([1.0, 2.0, 4.0])


def test_a_plain_run_that_was_late_makes_nobody_look_faster() -> None:
    assert raced(plain_s=3.0).speedup(Way.COSINE) == pytest.approx(4.0)


def test_a_first_token_that_was_late_in_one_lane_is_not_counted() -> None:
    row = raced(plain_s=3.0)
    late = {
        way: replace(done, time_to_first_token_s=2.0 if way is Way.PLAIN else 0.1) for way, done in row.done.items()
    }
    assert replace(row, done=late).plain_s == pytest.approx(0.64)


def test_by_the_clock_plain_decoding_took_what_it_took() -> None:
    assert replace(raced(plain_s=3.0), pass_s=None).plain_s == 3.0


def test_a_late_cosine_is_as_slow_as_it_was() -> None:
    assert raced(cosine_s=1.28).speedup(Way.COSINE) == pytest.approx(0.5)


def test_texts_are_compared_in_all_lanes() -> None:
    row = raced()
    assert row.identical
    assert not replace(row, done={**row.done, Way.COPYING: generation(0.3, tokens=9)}).identical


def test_of_several_runs_the_median_counts() -> None:
    runs = {way: [generation(3.0), generation(1.0), generation(2.0)] for way in Way}
    assert {done.seconds for done in typical(runs).values()} == {2.0}


def test_a_text_that_differs_in_one_run_of_several_is_not_passed_over() -> None:
    runs = {way: [generation(1.0), generation(2.0), generation(3.0)] for way in Way}
    runs[Way.COSINE][2] = generation(3.0, tokens=9)
    assert not replace(raced(), done=typical(runs)).identical
