"""Turns of chains at a stage's event loop, counted in steps, so that none waits long for another's operations."""

import asyncio
from typing import Final

from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.paged import PagedEngine
from cosine_protocol.stage_messages import (
    BookOperation,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)

TURN_STEPS: Final = 1_000
"""A choice: 0.1 to 0.3 ms of Python, a few operations with the nodes of a usual tree."""
OPERATION_STEPS: Final = 20
"""Of any operation, for what does not grow with it: to take, check and pass it on takes some 20 microseconds."""


class Turn:
    """One chain's part of the event loop: whoever has spent `TURN_STEPS` lets all others have theirs.

    Who takes many turns at once, as an operation is never cut, lets the others have as many.
    """

    def __init__(self, *, turn_steps: int = TURN_STEPS) -> None:
        self._turn_steps = turn_steps
        self._left = turn_steps

    async def spend(self, steps: int) -> None:
        """Take steps that were done; returns when it is this chain's turn again."""
        self._left -= steps
        while self._left <= 0:
            self._left += self._turn_steps
            # Behind all that can run now.
            await asyncio.sleep(0)


def steps_of(operation: BookOperation, books: PagedEngine) -> int:
    """About how many names, tokens and pages an operation looks at, before it is applied.

    Raises `LocalProtocolError` for the number of a sequence that is not open.
    """
    match operation:
        case OpenSequence():
            looked_at = 0
        case ReserveRoom(_, tokens):
            looked_at = tokens // PAGE_TOKENS
        case ReusePrefix(_, tokens):
            looked_at = len(tokens)
        case KeepPath(sequence, names) | PruneNodes(sequence, names):
            looked_at = len(names) + len(books.tree(sequence).nodes)
        case ReleaseSequence(sequence):
            looked_at = books.tree(sequence).live_tokens
    return OPERATION_STEPS + looked_at
