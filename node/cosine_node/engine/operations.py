"""The operations that keep the sequences of a chain's head and of its stages alike: applied in one order by all.

A head sends those that changed its own pages, trees or prefix cache; what changed nothing is not sent. Where they
begin alike and apply the same operations, all decide alike about pages and prefixes, however late. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.paged import PagedEngine
from cosine_protocol.errors import CosineError, LocalProtocolError
from cosine_protocol.stage_messages import (
    BookOperation,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)


class ChainLost(CosineError):
    """A stage of a chain failed or went away: what the chain held is lost."""


@dataclass(frozen=True, slots=True)
class FeedRows:
    """A pass over rows; the only operation that is answered."""

    rows: tuple[Row, ...]


Operation = BookOperation | FeedRows


class Chain(Protocol):
    """The stages of a model as their head sees them."""

    def submit(self, operation: Operation) -> None:
        """Send the next operation, without waiting for anything; nothing is sent once the chain is lost."""
        ...

    def results(self) -> Sequence[RowResult]:
        """The results of the oldest feed that was not answered yet, one a row. Raises `ChainLost`."""
        ...


def apply_to_books(engine: PagedEngine, operation: BookOperation) -> None:
    """Apply a head's operation to the sequences of a stage.

    Raises `LocalProtocolError` or `OutOfPages` for one that no head sends whose sequences are the same.
    """
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
