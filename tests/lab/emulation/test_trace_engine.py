import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_lab.emulation.trace_engine import (
    NEAR_TIE_MARGIN,
    OFF_STREAM_TOKEN,
    ORACLE_HIT,
    ORACLE_MISS,
    Law,
    TraceDrafter,
    TraceTarget,
    ranked,
)
from cosine_lab.emulation.traces import CANDIDATES, VOCAB_TOKENS, Trace, TraceSet
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.lab.emulation.test_traces import MODELS, a_trace

MODEL = MODELS[0]
WRONG = 64
"""A token that no synthetic stream holds."""
TRACES = TraceSet([a_trace(number, tokens=20) for number in range(6)])
TRACE = TRACES.numbered(3)
ROOT = 0


@pytest.fixture(scope="module")
def family() -> TraceSet:
    return TraceSet.load_shipped()


def chain(sequence: int, tokens: Sequence[int], *, scored_from: int = 0, candidates: int = CANDIDATES) -> Row:
    nodes = tuple(range(len(tokens)))
    return Row(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), scored_from, candidates)


def opened(engine: Engine, trace: Trace) -> tuple[int, Choice]:
    """A sequence that has kept the trace's prompt, and what the engine says after it."""
    sequence = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens)
    row = chain(sequence, trace.prompt(), scored_from=trace.prompt_tokens - 1)
    (result,) = engine.forward([row])
    engine.keep(sequence, row.nodes)
    return sequence, result.choices[0]


def said_along(engine: Engine, trace: Trace) -> list[Choice]:
    """What an engine says before each token of the stream and after the last."""
    sequence, first = opened(engine, trace)
    choices = engine.forward([chain(sequence, trace.stream)])[0].choices
    engine.release(sequence)
    return [first, *choices]


def said_after(engine: Engine, trace: Trace, tokens: Sequence[int], *, candidates: int = CANDIDATES) -> Choice:
    """What an engine says after prompt and tokens."""
    sequence, _ = opened(engine, trace)
    choices = engine.forward([chain(sequence, tokens, candidates=candidates)])[0].choices
    engine.release(sequence)
    return choices[-1]


def grow(drafter: Engine, sequence: int, last: int, *, depth: int) -> list[tuple[int, int]]:
    """The (parent, token) of each node below `last`, the root: all candidates along the first ones."""
    tree = [(PREFIX, last)]
    parent = ROOT
    (result,) = drafter.forward([chain(sequence, [last])])
    for _ in range(depth):
        tokens = tuple(token for token, _ in result.choices[0].candidates)
        names = tuple(range(len(tree), len(tree) + len(tokens)))
        tree += [(parent, token) for token in tokens]
        parents = (parent,) * len(names)
        (result,) = drafter.forward([Row(sequence, tokens, names, parents, candidates=CANDIDATES)])
        parent = names[0]
    return tree


def accepted(tree: list[tuple[int, int]], choices: Sequence[Choice]) -> list[int]:
    """The path of nodes that the target takes, from the root on."""
    path = [ROOT]
    while (child := (path[-1], choices[path[-1]].token)) in tree:
        path.append(tree.index(child))
    return path


def generate(target: Engine, drafter: Engine, trace: Trace) -> tuple[list[int], int]:
    """The output of speculative decoding with trees, and the passes of the target it took."""
    verifying, first = opened(target, trace)
    drafting, _ = opened(drafter, trace)
    output, passes = [first.token], 1
    while len(output) < len(trace.stream):
        tree = grow(drafter, drafting, output[-1], depth=3)
        parents, tokens = zip(*tree, strict=True)
        (result,) = target.forward([Row(verifying, tokens, tuple(range(len(tree))), parents)])
        path = accepted(tree, result.choices)
        output += [result.choices[name].token for name in path]
        passes += 1
        for engine, sequence in ((target, verifying), (drafter, drafting)):
            engine.keep(sequence, path)
            engine.prune(sequence, range(len(tree)))
    target.release(verifying)
    drafter.release(drafting)
    return output[: len(trace.stream)], passes


@pytest.mark.parametrize(("law", "is_oracle"), list(product(Law, [False, True])))
def test_trees_verified_by_the_target_give_the_stream(law: Law, is_oracle: bool) -> None:
    target = TraceTarget(TRACES)
    for trace in TRACES:
        drafter = TraceDrafter(TRACES, MODEL, law=law, is_oracle=is_oracle)
        output, passes = generate(target, drafter, trace)
        assert tuple(output) == trace.stream
        assert passes < len(trace.stream)
        assert drafter.live_tokens == drafter.open_sequences == 0
    assert target.live_tokens == target.open_sequences == 0


def test_the_target_says_the_stream_with_its_near_ties() -> None:
    for trace in TRACES:
        said = said_along(TraceTarget(TRACES), trace)
        assert tuple(choice.token for choice in said[:-1]) == trace.stream
        margins = [NEAR_TIE_MARGIN if is_near else math.inf for is_near in trace.near_ties]
        assert [choice.margin for choice in said[:-1]] == margins
        assert said[0].candidates == ((trace.stream[0], 1.0),)


@given(
    at=st.integers(0, 19),
    rest=st.lists(st.integers(0, VOCAB_TOKENS - 1), max_size=5),
    wrong=st.integers(0, VOCAB_TOKENS - 1),
)
def test_off_the_stream_the_target_has_nothing_to_say(at: int, wrong: int, rest: list[int]) -> None:
    left = (*TRACE.stream[:at], wrong if wrong != TRACE.stream[at] else WRONG, *rest)
    assert said_after(TraceTarget(TRACES), TRACE, left, candidates=0) == Choice(OFF_STREAM_TOKEN, math.inf)


def test_beyond_the_recorded_end_both_go_on() -> None:
    target, drafter = TraceTarget(TRACES), TraceDrafter(TRACES, MODEL)
    tokens = list(TRACE.stream)
    for _ in range(30):
        choice = said_after(target, TRACE, tokens)
        assert choice == said_after(TraceTarget(TRACES), TRACE, tokens)
        assert choice.token != OFF_STREAM_TOKEN
        assert len(said_after(drafter, TRACE, tokens).candidates) == CANDIDATES
        tokens.append(choice.token)
    assert len(set(tokens[20:])) > 20


def test_a_drafter_says_what_was_recorded() -> None:
    record = TRACE.drafters[MODEL]
    said = said_along(TraceDrafter(TRACES, MODEL), TRACE)
    for choice, tokens, claims in zip(said, record.candidate_tokens, record.candidate_probabilities, strict=False):
        assert choice.candidates == tuple(zip(tokens.tolist(), claims.tolist(), strict=True))
        assert choice.token == tokens[0]
        assert choice.margin == pytest.approx(math.log(claims[0] / claims[1]), abs=1e-6)


@given(tokens=st.lists(st.integers(0, VOCAB_TOKENS - 1), min_size=1, max_size=6))
def test_off_the_stream_a_drafter_claims_as_it_did_elsewhere(tokens: list[int]) -> None:
    path = (WRONG, *tokens)
    choice = said_after(TraceDrafter(TRACES, MODEL), TRACE, path)
    assert [claim for _, claim in choice.candidates] in TRACE.drafters[MODEL].candidate_probabilities.tolist()
    ids = [token for token, _ in choice.candidates]
    assert len(set(ids)) == CANDIDATES
    assert all(0 < token < VOCAB_TOKENS for token in ids)
    assert choice == said_after(TraceDrafter(TRACES, MODEL), TRACE, path)


def test_off_the_stream_all_of_the_record_is_drawn_from_and_drafters_differ() -> None:
    one, other = (TraceDrafter(TRACES, model) for model in MODELS)
    said = [said_after(one, TRACE, (WRONG, token)) for token in range(400)]
    assert len({tuple(claim for _, claim in choice.candidates) for choice in said}) == len(TRACE.stream)
    agreed = [said_after(other, TRACE, (WRONG, token)).token == said[token].token for token in range(400)]
    assert mean(agreed) < 0.05


def test_the_published_law_accepts_by_overlap(family: TraceSet) -> None:
    for model in ("draft-code", "draft-general", "draft-literature"):
        hits, overlaps = [], []
        drafter = TraceDrafter(family, model, law=Law.PUBLISHED)
        for trace in family.select(temperature=0.8):
            said = said_along(drafter, trace)
            hits += [choice.token == token for choice, token in zip(said, trace.stream, strict=False)]
            overlaps += trace.drafters[model].overlap.tolist()
        assert mean(hits) == pytest.approx(mean(overlaps), abs=0.015)
        for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.01)):
            inside = [i for i, overlap in enumerate(overlaps) if low <= overlap < high]
            expected = mean(overlaps[i] for i in inside)
            assert mean(hits[i] for i in inside) == pytest.approx(expected, abs=0.04)


def test_at_temperature_zero_the_laws_agree(family: TraceSet) -> None:
    coupled, published = (TraceDrafter(family, "draft-medical", law=law) for law in Law)
    for trace in family.select(split="tune", temperature=0.0):
        assert said_along(coupled, trace) == said_along(published, trace)


@given(
    tokens=st.lists(st.integers(0, 9), min_size=4, max_size=4, unique=True),
    truth=st.integers(0, 9),
    is_first=st.booleans(),
)
def test_ranking_moves_the_true_token_only(tokens: list[int], truth: int, is_first: bool) -> None:
    moved = ranked(tokens, truth, is_first=is_first)
    assert (moved[0] == truth) == is_first
    assert len(set(moved)) == 4
    others = [token for token in moved if token != truth]
    assert others == [token for token in tokens if token != truth][: len(others)]
    if not is_first:
        assert set(moved) == set(tokens)


@pytest.mark.parametrize("law", Law)
def test_the_oracle_knows_what_will_be_taken(law: Law) -> None:
    plain, oracle = (TraceDrafter(TRACES, MODEL, law=law, is_oracle=flag) for flag in (False, True))
    for trace in TRACES:
        said = zip(said_along(oracle, trace), said_along(plain, trace), trace.stream, strict=False)
        for told, guessed, truth in said:
            assert [token for token, _ in told.candidates] == [token for token, _ in guessed.candidates]
            claims = [ORACLE_HIT if token == truth else ORACLE_MISS for token, _ in told.candidates]
            assert [claim for _, claim in told.candidates] == claims
        off = said_after(oracle, trace, [WRONG])
        assert {claim for _, claim in off.candidates} == {ORACLE_MISS}


def test_nll_is_that_of_prompt_and_stream() -> None:
    record = TRACE.drafters[MODEL]
    drafter = TraceDrafter(TRACES, MODEL)
    prompt = TRACE.prompt()
    sequence = drafter.open(sampling=Sampling(), prompt_tokens=len(prompt))
    row = replace(chain(sequence, (*prompt, *TRACE.stream)), wants_nll=True)
    losses = [record.prompt_nll] * (len(prompt) - 1) + (-record.log_probability).tolist()
    assert drafter.forward([row])[0].nll == pytest.approx(mean(losses))
    alone = Row(sequence, (5,), (99,), (row.nodes[-1],), wants_nll=True)
    assert drafter.forward([alone])[0].nll is None


def test_sequences_do_not_mix() -> None:
    engine = TraceTarget(TRACES)
    sequences = [opened(engine, trace)[0] for trace in TRACES]
    rows = [chain(s, trace.stream[:7]) for s, trace in zip(sequences, TRACES, strict=True)]
    for result, trace in zip(engine.forward(rows), TRACES, strict=True):
        assert result.choices[-1].token == trace.stream[7]
    assert engine.passes == len(TRACES) + 1


@settings(max_examples=30)
@given(data=st.data())
def test_what_is_said_depends_on_the_path_and_not_on_how_it_was_fed(data: st.DataObject) -> None:
    drafter = TraceDrafter(TRACES, MODEL)
    path = data.draw(st.integers(0, 12).map(lambda n: [*TRACE.stream[:n], WRONG, 7, *TRACE.stream[n:]]))
    sequence, _ = opened(drafter, TRACE)
    said: list[Choice] = []
    position, name = 0, 1000
    while position < len(path):
        count = data.draw(st.integers(1, 5))
        row = chain(sequence, path[position : position + count])
        noise = Row(sequence, (9,), (name,), (PREFIX,))
        drafter.forward([noise])
        said += drafter.forward([row])[0].choices
        if data.draw(st.booleans()):
            drafter.prune(sequence, [name])
        drafter.keep(sequence, row.nodes)
        position, name = position + count, name + 1
    assert said == list(said_along(TraceDrafter(TRACES, MODEL), replaced_stream(path))[1:])


def replaced_stream(path: Sequence[int]) -> Trace:
    """Something to feed along `path` after the prompt of `TRACE`."""
    return replace(TRACE, stream=tuple(path), near_ties=(False,) * len(path), drafters={})


@pytest.mark.parametrize("prompt", [(77, 77, 1), (3,), (3, 0, 1, 1, 1, 1, 1, 1)])
def test_prompts_of_no_trace_are_refused_and_not_fed(prompt: tuple[int, ...]) -> None:
    engine = TraceTarget(TRACES)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    with pytest.raises(UsageError):
        engine.forward([chain(sequence, prompt)])
    assert engine.live_tokens == engine.passes == 0


def test_a_drafter_that_is_in_no_trace_is_refused() -> None:
    with pytest.raises(UsageError, match="draft-poetry"):
        TraceDrafter(TRACES, "draft-poetry")
