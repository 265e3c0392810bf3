"""The operations that keep the sequences of a chain's head and stages equal: all apply them in one order. Pure.

A head sends the operations that changed its own pages, trees or prefix cache. Since all begin equal and apply the
same operations, they make the same decisions about pages and prefixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cosine_engine.base import Row, RowResult
from cosine_engine.paged import PagedEngine
from cosine_protocol.errors import CosineError, LocalProtocolError
from cosine_protocol.stage import (
    MAX_FEED_CHOICES,
    MAX_FEED_ROWS,
    MAX_FEED_TOKENS,
    BookOperation,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)


class ChainLost(CosineError):
    """A chain is lost, by the fault of `peer_id` if known; with `retry_after_s` that stage was only busy."""

    def __init__(self, message: str, *, peer_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.peer_id = peer_id
        self.retry_after_s = retry_after_s


class BadActivations(CosineError):
    """Activations from the stage before have the wrong shape or dtype, or are not finite; nothing was fed."""


@dataclass(frozen=True, slots=True)
class FeedRows:
    """A pass over rows, the only operation with an answer."""

    rows: tuple[Row, ...]


Operation = BookOperation | FeedRows


class Chain(Protocol):
    """A head's interface to the stages of a model."""

    def submit(self, operation: Operation) -> None:
        """Send the next operation without waiting; does nothing once the chain is lost."""

    def results(self) -> Sequence[RowResult]:
        """Wait for the results of the oldest unanswered feed, one a row. Raises `ChainLost`."""


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
