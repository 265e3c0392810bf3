"""Requests that wait until their constraint is compiled."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cosine_engine.constraints.grammars import Grammars
from cosine_node.verifier.admission import RETRY_AFTER_S
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Constraint

LOG = logging.getLogger(__name__)
MOST: Final = 32
"""Bounds memory: a constraint has at most 64 KB, and compiling it takes a few seconds at most."""


class Preparations:
    """Waiting requests, by channel and number."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[Channel, int], asyncio.Task[None]] = {}

    def begin(
        self,
        channel: Channel,
        number: int,
        grammars: Grammars,
        constraint: Constraint,
        then: Callable[[PeerError | None], None],
    ) -> None:
        """Compile a constraint, then call `then` with its error or None. Raises `PeerError` if too many wait."""
        key = (channel, number)
        if key in self._tasks:
            raise PeerError(ErrorCode.MALFORMED, "this request number is in use")
        if len(self._tasks) >= MOST:
            raise PeerError(ErrorCode.OVERLOADED, "too many constraints are compiled already", RETRY_AFTER_S)

        async def prepare() -> None:
            failure = None
            try:
                await grammars.prepare(constraint)
            except OSError:
                failure = PeerError(ErrorCode.OVERLOADED, "the constraint cannot be compiled now", RETRY_AFTER_S)
            except Exception:
                LOG.exception("a constraint could not be tried")
                failure = PeerError(ErrorCode.INTERNAL, "the constraint could not be compiled")
            del self._tasks[key]
            then(failure)

        self._tasks[key] = asyncio.ensure_future(prepare())

    def cancel(self, channel: Channel, number: int) -> bool:
        """Cancel a waiting request; True if it was waiting."""
        task = self._tasks.pop((channel, number), None)
        return task is not None and task.cancel()

    def cancel_all(self, channel: Channel) -> None:
        """Cancel all waiting requests of a stream."""
        for each, number in list(self._tasks):
            if each is channel:
                self.cancel(channel, number)
