"""The operations and passes of a chain, which its head and all its stages apply in one order, as messages. Pure.

A head sends the operations that changed its own pages, trees or prefix cache. Since all begin equal and apply the
same operations, they make the same decisions about pages and prefixes. Passes go from stage to stage with their
activations; the last stage sends the results to the head.
"""

import math
import struct
from collections.abc import Sequence

from cosine_engine.base import BadLogits, Choice, Row, RowResult
from cosine_engine.constraints.grammars import GrammarTooComplex
from cosine_engine.paged import PagedEngine
from cosine_protocol.errors import CosineError, LocalProtocolError, MalformedMessage
from cosine_protocol.stage import (
    MARGIN_BYTES,
    MAX_FEED_CHOICES,
    MAX_FEED_ROWS,
    MAX_FEED_TOKENS,
    MAX_PART_BYTES,
    Activations,
    BookOperation,
    FedRow,
    FeedPass,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    Results,
    ReusePrefix,
    RowAnswer,
    RowFault,
    TokenEstimate,
)


class ChainLost(CosineError):
    """A chain is lost, by the fault of `peer_id` if known; with `retry_after_s` that stage was only busy."""

    def __init__(self, message: str, *, peer_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.peer_id = peer_id
        self.retry_after_s = retry_after_s


class BadActivations(CosineError):
    """Activations from the stage before have the wrong shape or dtype, or are not finite; nothing was fed."""


def check_bounds(rows: Sequence[Row]) -> None:
    """Raise `LocalProtocolError` for rows that exceed the limits of one feed."""
    tokens = sum(len(row.tokens) for row in rows)
    choices = sum(max(0, len(row.tokens) - row.scored_from) * (1 + row.candidates) for row in rows)
    if not 0 < len(rows) <= MAX_FEED_ROWS or tokens > MAX_FEED_TOKENS or choices > MAX_FEED_CHOICES:
        raise LocalProtocolError(
            f"A feed of {len(rows)} rows, {tokens} tokens and {choices} choices and candidates is over its bounds."
        )


def apply_to_books(engine: PagedEngine, operation: BookOperation) -> None:
    """Apply a head's operation. Raises `LocalProtocolError` or `OutOfPages` if head and stage are out of step."""
    match operation:
        case OpenSequence(sequence, sampling, prompt_tokens, scope):
            opened = engine.open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
            if opened != sequence:
                raise LocalProtocolError(f"Sequence {opened} is the next one, not {sequence}.")
        case ReusePrefix(sequence, tokens):
            reused = engine.reuse_prefix(sequence, tokens)
            if reused != len(tokens) - 1:
                raise LocalProtocolError(
                    f"{reused} tokens of sequence {sequence} are known, not {len(tokens) - 1}."
                )
        case ReserveRoom(sequence, count):
            engine.reserve(sequence, count)
        case KeepPath(sequence, path):
            engine.keep(sequence, path)
        case PruneNodes(sequence, nodes):
            engine.prune(sequence, nodes)
        case ReleaseSequence(sequence):
            engine.release(sequence)


def feed_messages(number: int, rows: Sequence[Row], activations: bytes = b"") -> list[FeedPass | Activations]:
    """The messages of a feed: its rows, then the activations of their tokens in parts."""
    fed = tuple(
        FedRow(
            row.sequence,
            row.tokens,
            row.nodes,
            row.parents,
            row.scored_from,
            row.candidates,
            wants_nll=row.wants_nll,
        )
        for row in rows
    )
    starts = range(0, len(activations), MAX_PART_BYTES)
    parts = [Activations(activations[start : start + MAX_PART_BYTES]) for start in starts]
    return [FeedPass(number, fed, len(activations)), *parts]


def rows_of(feed: FeedPass) -> tuple[Row, ...]:
    """The rows of a feed. Raises `MalformedMessage` for invalid rows or exceeded bounds."""
    if any(not len(fed.tokens) == len(fed.nodes) == len(fed.parents) > 0 for fed in feed.rows):
        raise MalformedMessage("a row needs as many nodes and parents as tokens, and at least one")
    rows = tuple(
        Row(fed.sequence, fed.tokens, fed.nodes, fed.parents, fed.scored_from, fed.candidates, fed.wants_nll)
        for fed in feed.rows
    )
    try:
        check_bounds(rows)
    except LocalProtocolError as error:
        raise MalformedMessage(str(error)) from None
    return rows


def answer_of(result: RowResult) -> RowAnswer:
    """The message of one row's result."""
    if result.error is not None:
        is_constraint = isinstance(result.error, GrammarTooComplex)
        return RowAnswer(RowFault.BAD_CONSTRAINT if is_constraint else RowFault.BAD_LOGITS, (), b"", (), None)
    margins = [choice.margin for choice in result.choices]
    candidates = [
        # A sum of rounded probabilities may exceed 1 by its last bit.
        tuple(TokenEstimate(token, min(1.0, probability)) for token, probability in choice.candidates)
        for choice in result.choices
    ]
    return RowAnswer(
        RowFault.NONE,
        tuple(choice.token for choice in result.choices),
        struct.pack(f"<{len(margins)}d", *margins),
        tuple(candidates) if any(candidates) else (),
        result.nll,
    )


def results_of(results: Results, rows: Sequence[Row], *, vocab_tokens: int) -> list[RowResult]:
    """The results of the rows of a feed. Raises `MalformedMessage` if they do not fit the rows."""
    if len(results.rows) != len(rows):
        raise MalformedMessage(f"{len(results.rows)} results for {len(rows)} rows")
    return [_result_of(answer, row, vocab_tokens) for answer, row in zip(results.rows, rows, strict=True)]


def _result_of(answer: RowAnswer, row: Row, vocab_tokens: int) -> RowResult:
    if answer.fault == RowFault.BAD_LOGITS:
        return RowResult((), error=BadLogits(f"The model gave NaN or infinite logits for sequence {row.sequence}."))
    if answer.fault == RowFault.BAD_CONSTRAINT:
        return RowResult((), error=GrammarTooComplex("The constraint is too complex for the last stage."))
    if answer.fault:
        raise MalformedMessage(f"an unknown fault, {answer.fault}")
    scored = len(row.tokens) - row.scored_from
    candidates = answer.candidates or ((),) * scored
    if not len(answer.tokens) == len(answer.margins) // MARGIN_BYTES == len(candidates) == scored:
        raise MalformedMessage(f"choices after {len(answer.tokens)} tokens, not {scored}")
    if len(answer.margins) % MARGIN_BYTES or any(len(each) > row.candidates for each in candidates):
        raise MalformedMessage("margins or candidates that were not requested")
    margins = struct.unpack(f"<{scored}d", answer.margins)
    named = [*answer.tokens, *(each.token for of_choice in candidates for each in of_choice)]
    if max(named, default=0) >= vocab_tokens or any(math.isnan(margin) for margin in margins):
        raise MalformedMessage("a token outside the vocabulary, or a margin that is not a number")
    choices = tuple(
        Choice(token, margin, tuple((each.token, each.probability) for each in of_choice))
        for token, margin, of_choice in zip(answer.tokens, margins, candidates, strict=True)
    )
    return RowResult(choices, nll=answer.nll)
