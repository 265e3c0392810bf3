"""Two accounts of one sequence: honest ones never contradict each other, and a liar is among the suspects."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Choice
from cosine_node.chains.traces import TRACE_ROUNDING, ChainTrace, StageTrace, agrees, contradiction
from cosine_node.stages.proof import Projections
from cosine_protocol.request import Sampling
from cosine_protocol.stage import PROJECTIONS, LayerRange

LAYERS: Final = 8
POSITIONS: Final = 24
GREEDY: Final = Sampling()


def true_values(seed: int) -> dict[int, Projections]:
    """What goes over each boundary between layers, at each position."""
    rng = np.random.default_rng(seed)
    return {boundary: rng.standard_normal((POSITIONS, PROJECTIONS)) for boundary in range(1, LAYERS)}


def account(
    values: dict[int, Projections], cuts: tuple[int, ...], name: str, *, noise: float = 0.0, seed: int = 0
) -> ChainTrace:
    """What honest stages say that round by so much."""
    rng = np.random.default_rng(seed)
    over = {}
    for cut in cuts:
        drawn = rng.standard_normal((POSITIONS, PROJECTIONS))
        length = np.sqrt(np.mean(values[cut] ** 2, axis=1) / np.mean(drawn**2, axis=1))
        over[cut] = values[cut] + noise * length[:, None] * drawn
    stages = [
        StageTrace(
            f"{name}{first}", LayerRange(first=first, end=end, layers=LAYERS), over.get(first), over.get(end)
        )
        for first, end in zip((0, *cuts), (*cuts, LAYERS), strict=True)
    ]
    return ChainTrace(tuple(stages), tuple(Choice(number, 1.0) for number in range(POSITIONS)))


def lied(trace: ChainTrace, number: int, *, at: int, seed: int, hides: bool = False) -> ChainTrace:
    """The same where a stage sends nonsense from a position on: all behind it compute with that.

    It may hide what it sent.
    """
    rng = np.random.default_rng((seed, 1))
    stages = list(trace.stages)
    for index in range(number, len(stages)):
        stage = stages[index]
        if stage.left is None:
            continue
        wrong = stage.left.copy()
        wrong[at:] = rng.standard_normal(wrong[at:].shape)
        stages[index] = stage if hides and index == number else replace(stage, left=wrong)
        stages[index + 1] = replace(stages[index + 1], entered=wrong)
    choices = tuple(Choice(position + (position >= at), 1.0) for position in range(POSITIONS))
    return ChainTrace(tuple(stages), choices)


def found(one: ChainTrace, other: ChainTrace, numerics: str = "float32") -> Any:
    return contradiction(one, other, sampling=GREEDY, numerics=numerics)


CUTS = st.sets(st.integers(1, LAYERS - 1), max_size=4).map(lambda cuts: tuple(sorted(cuts)))


@given(seed=st.integers(0, 999), one=CUTS, other=CUTS, numerics=st.sampled_from(sorted(TRACE_ROUNDING)))
def test_honest_stages_that_round_never_contradict_each_other(
    seed: int, one: tuple[int, ...], other: tuple[int, ...], numerics: str
) -> None:
    values = true_values(seed)
    # As much as was measured of any position.
    noise = TRACE_ROUNDING[numerics].clean_median / 2
    first = account(values, one, "a", noise=noise, seed=seed + 1)
    second = account(values, other, "b", noise=noise, seed=seed + 2)
    assert found(first, second, numerics) is None


@given(
    seed=st.integers(0, 999),
    cuts=CUTS.filter(bool),
    liar=st.integers(0, 4),
    at=st.integers(0, POSITIONS - 1),
    silent=st.sets(st.integers(0, 4), max_size=2),
    numerics=st.sampled_from(sorted(TRACE_ROUNDING)),
)
def test_a_liar_is_the_only_suspect_of_its_chain(
    seed: int, cuts: tuple[int, ...], liar: int, at: int, silent: set[int], numerics: str
) -> None:
    values = true_values(seed)
    noise = TRACE_ROUNDING[numerics].clean_median / 2
    number = liar % len(cuts)
    wrong = lied(account(values, cuts, "a", noise=noise, seed=1), number, at=at, seed=seed)
    right = account(values, cuts, "b", noise=noise, seed=2)
    named = found(wrong, right, numerics)
    assert named.ones == (f"a{(0, *cuts)[number]}",) and named.others == (f"b{(0, *cuts)[number]}",)
    # The other way round too, and a third one tells which of them it was.
    assert found(right, wrong, numerics).others == named.ones
    third = account(values, cuts, "c", noise=noise, seed=3)
    assert not agrees(wrong, third, named, sampling=GREEDY, numerics=numerics)
    assert agrees(right, third, named, sampling=GREEDY, numerics=numerics)
    # Stages that say nothing may only bring in more suspects.
    stages = tuple(
        replace(stage, entered=None, left=None) if number in silent else stage
        for number, stage in enumerate(wrong.stages)
    )
    widened = found(replace(wrong, stages=stages), right, numerics)
    assert named.ones[0] in widened.ones


@given(
    seed=st.integers(0, 999),
    one=CUTS.filter(bool),
    other=CUTS,
    liar=st.integers(0, 4),
    at=st.integers(0, POSITIONS - 1),
)
def test_where_chains_are_cut_elsewhere_the_liar_is_among_the_suspects(
    seed: int, one: tuple[int, ...], other: tuple[int, ...], liar: int, at: int
) -> None:
    values = true_values(seed)
    number = liar % len(one)
    named = found(lied(account(values, one, "a"), number, at=at, seed=seed), account(values, other, "b"))
    assert f"a{(0, *one)[number]}" in named.ones


@given(seed=st.integers(0, 999), liar=st.integers(0, 2), at=st.integers(0, POSITIONS - 1))
def test_who_hides_what_it_sent_and_its_receiver_are_the_suspects(seed: int, liar: int, at: int) -> None:
    values, cuts = true_values(seed), (2, 4, 6)
    named = found(lied(account(values, cuts, "a"), liar, at=at, seed=seed, hides=True), account(values, cuts, "b"))
    assert named.is_link
    assert (*named.ones, *named.others) == (f"a{(0, *cuts)[liar]}", f"a{(0, *cuts)[liar + 1]}")


@pytest.mark.parametrize(("wrong", "is_found"), [(0, False), (1, True)])
def test_choices_that_differ_widely_are_the_last_stages(wrong: int, is_found: bool) -> None:
    values = true_values(1)
    one, other = account(values, (4,), "a"), account(values, (4,), "b")
    choices = tuple(Choice(position + (position < wrong), 1.0) for position in range(POSITIONS))
    named = found(one, replace(other, choices=choices))
    assert (named is not None) == is_found
    if is_found:
        assert (named.ones, named.others, str(named.layers)) == (("a4",), ("b4",), "4:8")
