"""A ring of processes by the clock: what its tokens waited for, and the same ring in virtual time."""

import asyncio
from collections import Counter

import pytest

from cosine_engine.zoo import Family
from cosine_lab.experiments.here import TimedRun
from cosine_lab.experiments.ring_here import (
    PARTLY,
    TOGETHER,
    WHOLE,
    RingHereOptions,
    in_virtual_time,
    run_ring_here,
    waits_of,
)
from cosine_node.demo.race import RacedWay


def run_of(*gaps_s: float, drafted: int = 0) -> TimedRun:
    return TimedRun(
        ms_per_token=1.0,
        token_ids=(1,) * len(gaps_s),
        origins=Counter(),
        drafters=(),
        near_ties=0,
        gaps_s=gaps_s,
        drafted=drafted,
    )


def test_a_token_waits_for_the_one_before_or_a_traversal_or_a_part_of_it() -> None:
    """A traversal is the time of a token of plain decoding. The first token waits for the prompt."""
    plain = run_of(0.0, 0.13, 0.13, 0.14)
    ours = run_of(0.0, 0.14, 0.0, 0.0, 0.005, 0.06, 0.11, drafted=70)
    found = waits_of({RacedWay.PLAIN.value: [plain], RacedWay.COSINE.value: [ours]})
    assert found["waits"][RacedWay.COSINE.value] == {WHOLE: 2, TOGETHER: 3, PARTLY: 1}
    assert found["waits"][RacedWay.PLAIN.value] == {WHOLE: 3}
    assert found["drafted_per_token"][RacedWay.COSINE.value] == 10.0


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_ring_is_started_and_measured_by_the_clock_and_in_virtual_time() -> None:
    options = RingHereOptions(
        family=Family.TOY, rtts_ms=(20.0,), temperatures=(0.0,), prompts=1, tokens=16, stages=2, device="15/6",
    )  # fmt: skip
    result = asyncio.run(run_ring_here(options, rows=[], say=lambda _: None))
    [only] = result["rows"]
    assert only["is_identical"] and sum(only["waits"][RacedWay.PLAIN.value].values()) == 15
    assert result["setup"]["target"] == "zoo:target"
    alone, ours = in_virtual_time(options, result["findings"]["ways"])
    # Two stages and three links take 60 ms in both worlds, and real stages a little longer.
    assert result["findings"]["ways"][0]["plain_ms_per_token"] >= 60.0
    assert ours["stage_more_ms"] == alone["stage_more_ms"] > 0.0
    assert ours["clock_of_virtual"] == pytest.approx(ours["clock_times_plain"] / ours["virtual_times_plain"])
    assert (alone["way"], ours["way"]) == (RacedWay.COPYING.value, RacedWay.COSINE.value)
