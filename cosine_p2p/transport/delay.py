"""An emulated link, which delays every byte of a stream by a constant one-way delay."""

import asyncio
from collections.abc import Callable

from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_protocol.errors import PeerLost


class DelayedStream:
    """A stream whose bytes leave and arrive `one_way_s` later. `note_heard` is called when bytes arrive."""

    def __init__(self, stream: Stream, one_way_s: float, note_heard: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._one_way_s = one_way_s
        self._note_heard = note_heard
        self._arriving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._leaving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._pull()), asyncio.ensure_future(self._push())]

    @property
    def peer_id(self) -> str:
        return self._stream.peer_id

    async def read(self) -> bytes:
        due, data = await self._arriving.get()
        await _sleep_until(due)
        if not data:
            self._arriving.put_nowait((due, data))
        return data

    async def write(self, data: bytes) -> None:
        if self._tasks[1].done():
            raise PeerLost(self.peer_id, "the stream is closed")
        self._leaving.put_nowait((self._due(), data))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._stream.close()
        self._arriving.put_nowait((0.0, b""))

    def note_flood(self) -> None:
        self._stream.note_flood()

    def _due(self) -> float:
        return asyncio.get_running_loop().time() + self._one_way_s

    async def _pull(self) -> None:
        data = b"-"
        while data:
            data = await self._stream.read()
            self._note_heard()
            self._arriving.put_nowait((self._due(), data))

    async def _push(self) -> None:
        try:
            while True:
                due, data = await self._leaving.get()
                await _sleep_until(due)
                await self._stream.write(data)
        except PeerLost:
            return


async def _sleep_until(due: float) -> None:
    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


def delayed(handler: StreamHandler, *, one_way_s: float) -> StreamHandler:
    """Wrap a handler so that its streams have an emulated link."""
    if one_way_s <= 0:
        return handler

    async def handle(stream: Stream) -> None:
        await handler(DelayedStream(stream, one_way_s))

    return handle
