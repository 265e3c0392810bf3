"""The fastest of all chains is found, and new stages hold the layers that are lacked most."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.chains.search import USUAL_RTT_S, NoChain, Rtt, StagePlace, find_chain, loaded_pass_s
from cosine_p2p.directory.coverage import holders, lacked_most, unheld
from cosine_protocol.stage import LayerRange

HEAD = "head"
LAYERS = 8


def sight(name: str, first: int, end: int, pass_s: float = 0.01, *, layers: int = LAYERS) -> StagePlace:
    return StagePlace(name, LayerRange(first=first, end=end, layers=layers), pass_s)


@st.composite
def swarms(draw: st.DrawFn) -> tuple[list[StagePlace], Rtt, dict[str, int]]:
    stages = []
    for number in range(draw(st.integers(0, 9))):
        first = draw(st.integers(0, LAYERS - 1))
        end = draw(st.integers(first + 1, LAYERS))
        stages.append(sight(f"peer {number}", first, end, draw(st.floats(0.001, 1.0))))
    names = [HEAD, *(one.peer_id for one in stages)]
    known = {frozenset((a, b)): draw(st.none() | st.floats(0.0, 1.0)) for a in names for b in names if a < b}
    avoided = draw(st.dictionaries(st.sampled_from(names), st.integers(1, 5)))
    return stages, lambda one, other: known[frozenset((one, other))], avoided


def all_chains(stages: Sequence[StagePlace], at: int = 0) -> list[tuple[StagePlace, ...]]:
    if at == LAYERS:
        return [()]
    return [(one, *rest) for one in stages if one.layers.first == at for rest in all_chains(stages, one.layers.end)]


def cost(chain: Sequence[StagePlace], rtt_s: Rtt, avoided: dict[str, int]) -> tuple[int, float]:
    names = [HEAD, *(one.peer_id for one in chain), HEAD]
    ways_s = [rtt_s(one, other) for one, other in pairwise(names)]
    seconds = sum((USUAL_RTT_S if way_s is None else way_s) / 2 for way_s in ways_s)
    return sum(avoided.get(name, 0) for name in names[1:-1]), seconds + sum(one.pass_s for one in chain)


def check_best(
    found: Sequence[StagePlace] | None, stages: Sequence[StagePlace], rtt_s: Rtt, avoided: dict[str, int]
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
def test_the_best_of_all_chains_is_found(
    swarm: tuple[list[StagePlace], Rtt, dict[str, int]],
) -> None:
    stages, rtt_s, avoided = swarm
    try:
        found = find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=rtt_s, avoided=avoided)
    except NoChain as error:
        check_best(None, stages, rtt_s, avoided)
        gaps = unheld([one.layers for one in stages], layers=LAYERS)
        assert all(str(gap) in str(error) for gap in gaps)
        return
    check_best(found.stages, stages, rtt_s, avoided)
    assert math.isclose(found.seconds, cost(found.stages, rtt_s, avoided)[1], abs_tol=1e-9)


def test_layers_that_nobody_holds_are_named_and_stages_that_do_not_follow_each_other_told() -> None:
    for held, said in (
        ([(0, 8), (16, 24)], r"^Layers 8:16 of 24 are held by no stage\.$"),
        ([], r"^Layers 0:24 of 24 are held by no stage\.$"),
        ([(0, 16), (12, 24)], "after layers 0:16 none begins with layer 16"),
    ):
        # Stages of models with another number of layers are ignored.
        stages = [*(sight("a", *part, layers=24) for part in held), sight("b", 0, 3, layers=3)]
        with pytest.raises(NoChain, match=said):
            find_chain(stages, layers=24, head=HEAD, rtt_s=lambda one, other: None)


@st.composite
def parts(draw: st.DrawFn) -> LayerRange:
    first = draw(st.integers(0, LAYERS - 1))
    return LayerRange(first=first, end=draw(st.integers(first + 1, LAYERS)), layers=LAYERS)


HELD = st.lists(parts(), max_size=8)


@given(HELD, st.integers(0, LAYERS))
def test_a_new_stage_holds_what_fewest_hold_and_what_fits(held: list[LayerRange], room: int) -> None:
    found = lacked_most(held, layers=LAYERS, fits=lambda layers: len(layers) <= room)
    counts = holders(held, layers=LAYERS)
    if not room:
        assert found is None
        return
    assert found is not None and len(found) <= room
    assert found.first == counts.index(min(counts))
    assert set(counts[found.first : found.end]) == {min(counts)}
    meetings = {layer for one in held for layer in (one.first, one.end)} | {0, LAYERS}
    assert found.first in meetings
    # It is shorter than possible only to end where another stage begins or ends.
    longer = found.end < LAYERS and counts[found.end] == min(counts) and len(found) < room
    assert not longer or found.end in meetings


def names_of(stages: Sequence[StagePlace], **options: Any) -> list[str]:
    found = find_chain(stages, layers=LAYERS, head=HEAD, rtt_s=lambda one, other: 0.0, **options)
    return [one.peer_id for one in found.stages]


@given(
    standing=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)),
    apart=st.sets(st.sets(st.sampled_from("abcdef"), min_size=2, max_size=2).map(frozenset), max_size=4),
)
def test_neighbours_that_are_apart_never_follow_each_other(
    standing: dict[str, int], apart: set[frozenset[str]]
) -> None:
    parts = [(0, 3), (3, 6), (6, 8)]
    stages = [sight(name, *parts[number // 2]) for number, name in enumerate("abcdef")]
    chains = [[one.peer_id for one in chain] for chain in all_chains(stages)]
    free = [names for names in chains if not any({*pair} in apart for pair in pairwise(names))]
    try:
        found = names_of(stages, standing=standing, apart=apart)
    except NoChain:
        assert not free
        return
    assert found in free
    levels = max(sum(standing.get(name, 0) for name in names) for names in free)
    assert sum(standing.get(name, 0) for name in found) == levels


def test_a_busy_stage_counts_as_slower_but_no_slower_than_twice() -> None:
    assert loaded_pass_s(0.1, busy=0.0) == 0.1
    assert loaded_pass_s(0.1, busy=0.5) == pytest.approx(0.15)
    assert loaded_pass_s(0.1, busy=7.0) == pytest.approx(0.2)
    assert loaded_pass_s(0.0, busy=0.0) > 0.0
