"""Serves `/cosine/status/1.0.0`: a node's own status."""

import asyncio
from collections.abc import Callable

from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel, serving_budget
from cosine_protocol.codec import Message
from cosine_protocol.discover import STATUS, AskStatus, Status
from cosine_protocol.errors import ErrorCode
from cosine_protocol.stream import Error


class StatusService:
    """Answers with the result of `describe`: the signed record, the requests served now, and the passes so far.

    The answer includes the coordinate of a `vivaldi`, and a drafter's `accepted` tokens and all tokens of the texts
    that it drafted for.
    """

    def __init__(
        self,
        describe: Callable[[], tuple[bytes, int, int]],
        *,
        vivaldi: Vivaldi | None = None,
        accepted: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._describe = describe
        self._accepted = accepted
        self._vivaldi = vivaldi
        self._reads = serving_budget()
        self._began_s = asyncio.get_running_loop().time()

    async def handle(self, stream: Stream) -> None:
        """A `StreamHandler` for `STATUS`."""
        await serve_channel(stream, STATUS, self._answer, budget=self._reads)

    def _answer(self, channel: Channel, message: Message) -> None:
        if not isinstance(message, AskStatus):
            channel.post(Error(0, ErrorCode.MALFORMED, f"{type(message).__name__} is not a question", None))
            return
        record, requests, steps = self._describe()
        uptime_s = asyncio.get_running_loop().time() - self._began_s
        coordinate = self._vivaldi.coordinate if self._vivaldi is not None else None
        accepted, text_tokens = self._accepted() or (None, None)
        channel.post(Status(message.number, record, requests, steps, uptime_s, coordinate, accepted, text_tokens))
