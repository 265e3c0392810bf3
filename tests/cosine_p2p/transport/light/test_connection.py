"""Proposals of protocols: what a light client sends, and when, without a network."""

from collections import deque

import pytest
import trio

from cosine_p2p.transport.light.connection import NotServed, Proposed
from cosine_p2p.transport.light.library import encode_delim

PROTOCOL = "/test/echo/1.0.0"
LINES = encode_delim(b"/multistream/1.0.0") + encode_delim(PROTOCOL.encode())


class Below:
    """A stream whose other end has said something already."""

    def __init__(self, said: bytes) -> None:
        self.writes: list[bytes] = []
        self._said = deque([said])

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(data)

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        said = self._said.popleft() if self._said else b""
        if n is not None and len(said) > n:
            self._said.appendleft(said[n:])
            said = said[:n]
        return said


def test_a_proposal_goes_with_what_is_written_first_and_nothing_waits_for_its_answer() -> None:
    async def run() -> None:
        below = Below(LINES + b"answer")
        stream = Proposed(below, PROTOCOL)
        await stream.write(b"first")
        await stream.write(b"second")
        assert below.writes == [LINES + b"first", b"second"]
        assert await stream.read(64) == b"answer"

    trio.run(run)


@pytest.mark.parametrize("answer", [encode_delim(b"/multistream/1.0.0") + encode_delim(b"na"), encode_delim(b"hi")])
def test_another_answer_than_the_protocol_is_told_by_the_first_read(answer: bytes) -> None:
    async def run() -> None:
        stream = Proposed(Below(answer), PROTOCOL)
        await stream.write(b"data")
        with pytest.raises(NotServed, match=PROTOCOL):
            await stream.read(64)

    trio.run(run)
