"""A stream of a light client: used in the asyncio loop, carried by a muxed stream of the trio thread."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from cosine_p2p.transport.light.connection import NotServed, Proposed
from cosine_p2p.transport.light.library import BaseLibp2pError
from cosine_p2p.transport.light.trio_thread import TrioThread
from cosine_protocol.errors import PeerLost

logger = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10  # The maximum size of one read.
CHUNKS_BETWEEN: Final = 4  # Reads between the threads before the trio thread waits for the other.
LINGER_S: Final = 1.0  # How long a closed stream sends its end, and waits for the peer's.


class LightStream:
    """Implements `Stream`. `on_end` is called once, when our side has ended; `has_ended` is trio's."""

    def __init__(
        self, peer_id: str, muxed: Proposed, thread: TrioThread, on_end: Callable[["LightStream"], object]
    ) -> None:
        self.peer_id = peer_id
        self.has_ended = trio.Event()
        self._muxed = muxed
        self._thread = thread
        self._on_end = on_end
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._lost = ""
        self._is_refused = False
        self._is_closed = False
        self._room = trio.Semaphore(CHUNKS_BETWEEN)
        self._received_all = trio.Event()
        thread.post(thread.spawn, self._receive_all)

    async def read(self) -> bytes:
        while not (self._chunks or self._lost):
            self._changed.clear()
            await self._changed.wait()
        if self._chunks:
            self._thread.post(self._room.release)
            return self._chunks.popleft()
        was_refused, reason = self._is_refused, self._lost
        self.close()
        if was_refused:
            raise PeerLost(self.peer_id, reason)
        return b""

    async def write(self, data: bytes) -> None:
        if not self._lost:
            try:
                await self._thread.call(partial(self._muxed.write, data))
            except BaseLibp2pError as error:
                self._lose(f"the stream broke ({str(error) or type(error).__name__})")
            except trio.RunFinishedError:
                self._lose("we have left the network")
        if self._lost:
            self.close()
            raise PeerLost(self.peer_id, self._lost)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        while self._chunks:
            self._deliver(self._chunks.popleft())
        self._lose("the stream is closed")
        self._thread.post(self._thread.spawn, self._end)

    def note_flood(self) -> None:
        return

    def _deliver(self, data: bytes) -> None:
        if self._is_closed:
            self._thread.post(self._room.release)
        else:
            self._chunks.append(data)
            self._changed.set()

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._changed.set()

    def _refuse(self, reason: str) -> None:
        self._is_refused = not self._lost
        self._lose(reason)

    async def _receive_all(self) -> None:
        """Runs in the trio thread until the peer ends its side."""
        try:
            while True:
                await self._room.acquire()
                data = await self._muxed.read(READ_BYTES)
                if not data:
                    return
                self._thread.post_back(self._deliver, data)
        except NotServed as refused:
            self._thread.post_back(self._refuse, str(refused))
        except BaseLibp2pError:
            logger.debug("a stream of %s ended", self.peer_id, exc_info=True)
        except Exception:
            logger.warning("a stream of %s failed", self.peer_id, exc_info=True)
        finally:
            self._received_all.set()
            self._thread.post_back(self._lose, "the stream ended")

    async def _end(self) -> None:
        """Ends our side in the trio thread, and resets the stream once the peer has: a reset loses unread data."""
        with suppress(BaseLibp2pError), trio.move_on_after(LINGER_S):
            await self._muxed.close()
            self.has_ended.set()
            await self._received_all.wait()
        self.has_ended.set()
        self._thread.post_back(self._on_end, self)
        with suppress(BaseLibp2pError):
            await self._muxed.reset()
