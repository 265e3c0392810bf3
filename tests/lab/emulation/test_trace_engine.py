"""Engines that replay recorded generations return the recording, by either law of acceptance."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest

from cosine_engine.base import Choice, Engine, Row
from cosine_lab.emulation.trace_engine import NEAR_TIE_MARGIN, Law, TraceDrafter, TraceTarget
from cosine_lab.emulation.traces import CANDIDATES, Trace, TraceSet
from cosine_protocol.request import Sampling

MODEL = "draft-code"
SHIPPED = TraceSet.load_shipped()
TRACES = TraceSet(SHIPPED.select(domains=("code", "math"))[:6])
TRACE = next(iter(TRACES))


def chain(sequence: int, tokens: Sequence[int], *, scored_from: int = 0) -> Row:
    return replace(Row.chain(sequence, tokens, scored_from=scored_from), candidates=CANDIDATES)


def opened(engine: Engine, trace: Trace) -> tuple[int, Choice]:
    """Return a sequence with the trace's prompt kept, and the engine's choice after it."""
    sequence = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens)
    row = chain(sequence, trace.prompt(), scored_from=trace.prompt_tokens - 1)
    (result,) = engine.forward([row])
    engine.keep(sequence, row.nodes)
    return sequence, result.choices[0]


def said_along(engine: Engine, trace: Trace) -> list[Choice]:
    """Return an engine's choices before each token of the stream and after the last."""
    sequence, first = opened(engine, trace)
    choices = engine.forward([chain(sequence, trace.stream)])[0].choices
    engine.release(sequence)
    return [first, *choices]


def test_the_target_says_the_stream_with_its_near_ties() -> None:
    for trace in TRACES:
        said = said_along(TraceTarget(TRACES), trace)
        assert tuple(choice.token for choice in said[:-1]) == trace.stream
        margins = [NEAR_TIE_MARGIN if is_near else math.inf for is_near in trace.near_ties]
        assert [choice.margin for choice in said[:-1]] == margins
        assert said[0].candidates == ((trace.stream[0], 1.0),)


def test_a_drafter_says_what_was_recorded() -> None:
    record = TRACE.drafters[MODEL]
    said = said_along(TraceDrafter(TRACES, MODEL), TRACE)
    for choice, tokens, claims in zip(said, record.candidate_tokens, record.candidate_probabilities, strict=False):
        assert choice.candidates == tuple(zip(tokens.tolist(), claims.tolist(), strict=True))
        assert choice.token == tokens[0]
        assert choice.margin == pytest.approx(math.log(claims[0] / claims[1]), abs=1e-6)


def test_the_published_law_accepts_by_overlap() -> None:
    for model in ("draft-code", "draft-general", "draft-literature"):
        hits, overlaps = [], []
        drafter = TraceDrafter(SHIPPED, model, law=Law.PUBLISHED)
        for trace in SHIPPED.select(temperature=0.8):
            said = said_along(drafter, trace)
            hits += [choice.token == token for choice, token in zip(said, trace.stream, strict=False)]
            overlaps += trace.drafters[model].overlap.tolist()
        assert mean(hits) == pytest.approx(mean(overlaps), abs=0.015)
        for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.01)):
            inside = [i for i, overlap in enumerate(overlaps) if low <= overlap < high]
            expected = mean(overlaps[i] for i in inside)
            assert mean(hits[i] for i in inside) == pytest.approx(expected, abs=0.04)
