"""A stream of a light client, which carries bytes between the asyncio loop and the trio thread."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from cosine_p2p.transport.light.connection import NotServed, Proposed
from cosine_p2p.transport.light.library import BaseLibp2pError
from cosine_p2p.transport.light.trio_thread import TrioThread
from cosine_protocol.errors import PeerLost

logger = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10  # The maximum size of one read.
MAX_BETWEEN_BYTES: Final = 256 << 10  # Bytes between the threads before the faster one waits.
STEP_BYTES: Final = 64 << 10  # Progress is reported in steps of this size.
LINGER_S: Final = 1.0  # How long a closed stream sends its queued data.


class _Progress:
    """Counts bytes processed in one thread until there are enough to report to the other."""

    def __init__(self) -> None:
        self._unreported_bytes = 0

    def due_bytes(self, used_bytes: int) -> int:
        self._unreported_bytes += used_bytes
        if self._unreported_bytes < STEP_BYTES:
            return 0
        due_bytes, self._unreported_bytes = self._unreported_bytes, 0
        return due_bytes


class LightStream:
    """Implements `Stream` in the asyncio loop. `on_close` is called once, when our end is closed."""

    def __init__(
        self, peer_id: str, carrier: "Carrier", thread: TrioThread, on_close: Callable[["LightStream"], object]
    ) -> None:
        self.peer_id = peer_id
        self._carrier = carrier
        self._thread = thread
        self._on_close = on_close
        self._chunks: deque[bytes] = deque()
        self._consumed = _Progress()
        self._unsent_bytes = 0
        self._changed = asyncio.Event()
        self._lost = ""
        self._is_refused = False
        self._is_closed = False
        thread.post(carrier.start, self)

    async def read(self) -> bytes:
        while not (self._chunks or self._lost):
            await self._change()
        if not self._chunks:
            was_refused, reason = self._is_refused, self._lost
            self.close()
            if was_refused:
                raise PeerLost(self.peer_id, reason)
            return b""
        data = self._chunks.popleft()
        if due_bytes := self._consumed.due_bytes(len(data)):
            self._thread.post(self._carrier.note_consumed, due_bytes)
        return data

    async def write(self, data: bytes) -> None:
        if not self._lost:
            self._unsent_bytes += len(data)
            self._thread.post(self._carrier.push, data)
        while self._unsent_bytes > MAX_BETWEEN_BYTES and not self._lost:
            await self._change()
        if self._lost:
            self.close()
            raise PeerLost(self.peer_id, self._lost)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._chunks.clear()
        self.lose("the stream is closed")
        self._thread.post(self._carrier.end)
        self._on_close(self)

    def note_flood(self) -> None:
        return

    def deliver(self, data: bytes) -> None:
        if not self._is_closed:
            self._chunks.append(data)
            self._changed.set()

    def note_sent(self, size_bytes: int) -> None:
        self._unsent_bytes -= size_bytes
        self._changed.set()

    def lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._changed.set()

    def refuse(self, reason: str) -> None:
        self._is_refused = not self._lost
        self.lose(reason)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Carrier:
    """The trio end of a `LightStream`. `sent` is set after the last byte is sent; `on_end` is called at the end."""

    def __init__(self, muxed: Proposed, thread: TrioThread, on_end: Callable[["Carrier"], object]) -> None:
        self.sent = trio.Event()
        self._on_end = on_end
        self._muxed = muxed
        self._thread = thread
        self._outgoing: deque[bytes] = deque()
        self._written = _Progress()
        self._unread_bytes = 0
        self._is_ending = False
        self._has_changed = trio.lowlevel.ParkingLot()
        self._received_all = trio.Event()
        self._sending = trio.CancelScope()

    def start(self, stream: LightStream) -> None:
        self._thread.spawn(self._run, stream)

    def push(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._has_changed.unpark_all()

    def note_consumed(self, size_bytes: int) -> None:
        self._unread_bytes -= size_bytes
        self._has_changed.unpark_all()

    def end(self) -> None:
        """Send queued data for at most `LINGER_S`, and end the stream."""
        self._is_ending = True
        self._sending.deadline = trio.current_time() + LINGER_S
        self._has_changed.unpark_all()

    def discard(self) -> None:
        self._on_end(self)
        self._thread.spawn(self._muxed.reset)

    async def _run(self, stream: LightStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive_all, stream)
                with self._sending:
                    await self._send_all(stream)
                self.sent.set()
                await self._reset_once_ended()
                nursery.cancel_scope.cancel()
        except Exception:
            logger.warning("a stream of %s failed", stream.peer_id, exc_info=True)
        finally:
            self.sent.set()
            self._on_end(self)
            self._thread.post_back(stream.lose, "the connection was closed")

    async def _send_all(self, stream: LightStream) -> None:
        try:
            while self._outgoing or not self._is_ending:
                if not self._outgoing:
                    await self._has_changed.park()
                    continue
                data = self._outgoing.popleft()
                await self._muxed.write(data)
                if due_bytes := self._written.due_bytes(len(data)):
                    self._thread.post_back(stream.note_sent, due_bytes)
            await self._muxed.close()
        except BaseLibp2pError as error:
            self._thread.post_back(stream.lose, f"the stream broke ({str(error) or type(error).__name__})")

    async def _receive_all(self, stream: LightStream) -> None:
        try:
            while data := await self._muxed.read(READ_BYTES):
                if self._is_ending:
                    continue
                self._thread.post_back(stream.deliver, data)
                self._unread_bytes += len(data)
                while self._unread_bytes > MAX_BETWEEN_BYTES and not self._is_ending:
                    await self._has_changed.park()
        except NotServed as refused:
            self._thread.post_back(stream.refuse, str(refused))
        except BaseLibp2pError:
            logger.debug("a stream of %s ended", stream.peer_id, exc_info=True)
        self._received_all.set()
        self._thread.post_back(stream.lose, "the stream ended")

    async def _reset_once_ended(self) -> None:
        """Reset the stream, after a moment for the peer to end its side: a reset discards unread data."""
        with trio.move_on_after(LINGER_S):
            await self._received_all.wait()
        await self._muxed.reset()
