"""A libp2p stream as p2pd hands it over: one Unix socket."""

import asyncio
from collections.abc import Callable
from typing import Final

from cosine_protocol.errors import PeerLost

READ_BYTES: Final = 64 << 10
"""A choice: at most so much is read at once."""
LINGER_S: Final = 1.0
"""A choice: what is queued at the end gets this long to leave."""


class SocketStream:
    """Implements `Stream`; `on_close` is called once, when our end is closed."""

    def __init__(
        self,
        peer_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_close: Callable[["SocketStream"], None],
    ) -> None:
        self.peer_id = peer_id
        self._reader = reader
        self._writer = writer
        self._on_close = on_close
        self._is_closed = False

    async def read(self) -> bytes:
        try:
            data = b"" if self._is_closed else await self._reader.read(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    async def write(self, data: bytes) -> None:
        if not self._is_closed:
            try:
                self._writer.write(data)
                await self._writer.drain()
            except OSError as error:
                self.close()
                raise PeerLost(self.peer_id, f"the stream broke ({error})") from None
        if self._is_closed:
            raise PeerLost(self.peer_id, "the stream is closed")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        transport = self._writer.transport
        # A closing transport first sends its backlog, for ever if the peer reads nothing.
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        self._writer.close()
        self._reader.feed_eof()
        self._on_close(self)

    def note_flood(self) -> None:
        return

    def abort(self) -> None:
        """Close without sending what is queued."""
        self._writer.transport.abort()
        self.close()
