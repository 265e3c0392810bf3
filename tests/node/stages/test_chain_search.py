"""The chain that is found is the fastest of all, and its spares are the fastest without one stage."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.stages.chain_search import USUAL_RTT_S, Rtt, StageSight, find_chain, loaded_pass_s
from cosine_node.stages.coverage import unheld
from cosine_node.stages.operations import NoChain
from cosine_node.stages.remote_chain import StagePlace
from cosine_protocol.stage_messages import LayerRange

HEAD = "head"
LAYERS = 6


def sight(name: str, first: int, end: int, pass_s: float = 0.01, *, layers: int = LAYERS) -> StageSight:
    return StageSight(StagePlace(name, LayerRange(first=first, end=end, layers=layers)), pass_s)


def nowhere(one: str, other: str) -> float | None:
    return None


@st.composite
def swarms(draw: st.DrawFn) -> tuple[list[StageSight], Rtt, frozenset[str]]:
    stages = []
    for number in range(draw(st.integers(0, 9))):
        first = draw(st.integers(0, LAYERS - 1))
        end = draw(st.integers(first + 1, LAYERS))
        stages.append(sight(f"peer {number}", first, end, draw(st.floats(0.001, 1.0))))
    names = [HEAD, *(one.place.peer_id for one in stages)]
    known = {frozenset((a, b)): draw(st.none() | st.floats(0.0, 1.0)) for a in names for b in names if a < b}
    avoided = frozenset(draw(st.sets(st.sampled_from(names))))
    return stages, lambda one, other: known[frozenset((one, other))], avoided


def all_chains(stages: Sequence[StageSight], at: int = 0) -> list[tuple[StageSight, ...]]:
    if at == LAYERS:
        return [()]
    return [
        (one, *rest)
        for one in stages
        if one.place.layers.first == at
        for rest in all_chains(stages, one.place.layers.end)
    ]


def cost(chain: Sequence[StageSight], rtt_s: Rtt, avoided: frozenset[str]) -> tuple[int, float]:
    names = [HEAD, *(one.place.peer_id for one in chain), HEAD]
    ways_s = [rtt_s(one, other) for one, other in pairwise(names)]
    seconds = sum((USUAL_RTT_S if way_s is None else way_s) / 2 for way_s in ways_s)
    return sum(name in avoided for name in names[1:-1]), seconds + sum(one.pass_s for one in chain)


def check_best(
    found: Sequence[StageSight] | None, stages: Sequence[StageSight], rtt_s: Rtt, avoided: frozenset[str]
) -> None:
    costs = [cost(chain, rtt_s, avoided) for chain in all_chains(stages)]
    if found is None:
        assert not costs
        return
    assert tuple(found) in all_chains(stages)
    count, seconds = cost(found, rtt_s, avoided)
    least, least_s = min(costs)
    assert count == least and math.isclose(seconds, least_s, abs_tol=1e-9)


@given(swarms())
def test_the_best_of_all_chains_is_found_and_the_best_without_each_stage(
    swarm: tuple[list[StageSight], Rtt, frozenset[str]],
) -> None:
    stages, rtt_s, avoided = swarm
    try:
        found = find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=rtt_s, avoided=avoided)
    except NoChain as error:
        check_best(None, stages, rtt_s, avoided)
        gaps = unheld([one.place.layers for one in stages], layers=LAYERS)
        assert all(str(gap) in str(error) for gap in gaps)
        return
    check_best(found.stages, stages, rtt_s, avoided)
    assert math.isclose(found.seconds, cost(found.stages, rtt_s, avoided)[1], abs_tol=1e-9)
    for lost in found.stages:
        rest = [one for one in stages if one is not lost]
        check_best(found.spares.get(lost.place.peer_id), rest, rtt_s, avoided)


def test_layers_that_nobody_holds_are_named() -> None:
    stages = [sight("a", 0, 8, layers=24), sight("b", 16, 24, layers=24)]
    with pytest.raises(NoChain, match=r"^Layers 8:16 of 24 are held by nobody\.$"):
        find_chain(stages, layers=24, head=HEAD, rtt_s=nowhere)
    with pytest.raises(NoChain, match=r"^Layers 0:24 of 24 are held by nobody\.$"):
        find_chain([sight("a", 0, 3, layers=3)], layers=24, head=HEAD, rtt_s=nowhere)


def test_stages_that_do_not_follow_each_other_are_told() -> None:
    stages = [sight("a", 0, 4), sight("b", 3, 6)]
    with pytest.raises(NoChain, match="after layers 0:4 none begins with layer 4"):
        find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=nowhere)


def test_a_near_stage_is_taken_before_a_fast_one_far_away() -> None:
    stages = [sight("first", 0, 3), sight("far", 3, 6, 0.001), sight("near", 3, 6, 0.02)]

    def rtt_s(one: str, other: str) -> float:
        return 0.2 if "far" in (one, other) else 0.01

    found = find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=rtt_s)
    assert [one.place.peer_id for one in found.stages] == ["first", "near"]
    assert [one.place.peer_id for one in found.spares["near"]] == ["first", "far"]
    assert "first" not in found.spares
    avoided = find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=rtt_s, avoided={"near", "first"})
    assert [one.place.peer_id for one in avoided.stages] == ["first", "far"]


def test_a_busy_stage_counts_as_slower_but_no_slower_than_twice() -> None:
    assert loaded_pass_s(0.1, busy=0.0) == 0.1
    assert loaded_pass_s(0.1, busy=0.5) == pytest.approx(0.15)
    assert loaded_pass_s(0.1, busy=7.0) == pytest.approx(0.2)
