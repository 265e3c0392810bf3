"""Rows and results survive the way there and back; answers that do not fit the rows are refused."""

import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.base import PREFIX, BadLogits, Choice, Row, RowResult
from cosine_node.stages.operations import NotComputed
from cosine_node.stages.remote_chain import answer_of, feed_messages, results_of, rows_of
from cosine_protocol.codec import decode, encode
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.limits import MAX_FEED_TOKENS, MAX_PART_BYTES
from cosine_protocol.stage_messages import Activations, FedRow, FeedPass, Results, RowAnswer

VOCAB = 100


@st.composite
def rows(draw: st.DrawFn) -> Row:
    count = draw(st.integers(1, 5))
    nodes = tuple(draw(st.lists(st.integers(0, 1 << 40), min_size=count, max_size=count, unique=True)))
    parents = tuple(draw(st.sampled_from([PREFIX, *nodes[:index]])) for index in range(count))
    tokens = tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count)))
    scored_from, candidates = draw(st.integers(0, count)), draw(st.integers(0, 3))
    return Row(draw(st.integers(0, 9)), tokens, nodes, parents, scored_from, candidates, draw(st.booleans()))


def results_for(row: Row, draw: st.DrawFn) -> RowResult:
    estimates = st.tuples(st.integers(0, VOCAB - 1), st.floats(0, 1))
    choices = [
        Choice(
            draw(st.integers(0, VOCAB - 1)),
            draw(st.floats(0, math.inf)),
            tuple(draw(st.lists(estimates, min_size=row.candidates, max_size=row.candidates))),
        )
        for _ in row.tokens[row.scored_from :]
    ]
    return RowResult(tuple(choices), nll=draw(st.none() | st.floats(0, 1e6)))


@st.composite
def fed_and_found(draw: st.DrawFn) -> tuple[list[Row], list[RowResult]]:
    fed = draw(st.lists(rows(), min_size=1, max_size=3))
    return fed, [results_for(row, draw) for row in fed]


@given(fed_and_found(), st.sampled_from([0, 1, MAX_PART_BYTES, 2 * MAX_PART_BYTES + 1]))
def test_rows_and_results_survive(pair: tuple[list[Row], list[RowResult]], activation_bytes: int) -> None:
    fed, found = pair
    data = bytes(range(256)) * (activation_bytes // 256 + 1)
    feed, *parts = [decode(encode(each)) for each in feed_messages(7, fed, data[:activation_bytes])]
    assert isinstance(feed, FeedPass)
    assert (feed.number, feed.activation_bytes) == (7, activation_bytes)
    joined = b"".join(part.data for part in parts if isinstance(part, Activations))
    assert joined == data[:activation_bytes]
    assert rows_of(feed) == tuple(fed)
    answer = decode(encode(Results(7, tuple(map(answer_of, found)))))
    assert isinstance(answer, Results)
    assert results_of(answer, fed, vocab_tokens=VOCAB) == found


@pytest.mark.parametrize("error", [BadLogits("no numbers"), NotComputed("left out")])
def test_faults_keep_their_kind(error: Any) -> None:
    answer = Results(0, (answer_of(RowResult((), error=error)),))
    [result] = results_of(answer, [Row.chain(1, [2])], vocab_tokens=VOCAB)
    assert type(result.error) is type(error) and not result.choices


FITTING = RowAnswer(0, (5,), struct.pack("<d", 0.5), (), None)
ROW = Row.chain(1, [2, 3], scored_from=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": ()},
        {"tokens": (5, 6), "margins": bytes(16)},
        {"tokens": (VOCAB,)},
        {"margins": b""},
        {"margins": bytes(9)},
        {"margins": struct.pack("<d", math.nan)},
        {"candidates": ((), ())},
        {"candidates": (answer_of(RowResult((Choice(1, 0.0, ((1, 1.0),)),))).candidates[0],)},
    ],
    ids=str,
)
def test_answers_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    assert results_of(Results(0, (FITTING,)), [ROW], vocab_tokens=VOCAB)
    with pytest.raises(MalformedMessage):
        results_of(Results(0, (replace(FITTING, **changes),)), [ROW], vocab_tokens=VOCAB)
    with pytest.raises(MalformedMessage, match="0 results for 1 rows"):
        results_of(Results(0, ()), [ROW], vocab_tokens=VOCAB)


@pytest.mark.parametrize(
    "row",
    [
        FedRow(1, (2,), (), (), 0, 0, wants_nll=False),
        FedRow(1, (), (), (), 0, 0, wants_nll=False),
        FedRow(1, (2,) * 200, tuple(range(200)), (-1,) * 200, 0, 256, wants_nll=False),
    ],
    ids=["no nodes", "empty", "too many candidates"],
)
def test_rows_that_are_none_are_refused(row: FedRow) -> None:
    with pytest.raises(MalformedMessage):
        rows_of(FeedPass(0, (row,), 0))


def test_rows_have_a_bound_together() -> None:
    half = FedRow(1, (2,) * 2049, tuple(range(2049)), (-1, *range(2048)), 2048, 0, wants_nll=False)
    assert len(half.tokens) < MAX_FEED_TOKENS
    rows_of(FeedPass(0, (half,), 0))
    with pytest.raises(MalformedMessage, match="over its bounds"):
        rows_of(FeedPass(0, (half, replace(half, sequence=2)), 0))
