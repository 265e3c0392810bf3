"""One secured connection of a light client: noise and yamux over any byte stream. Lives in the trio thread."""

import logging
from collections.abc import Callable
from typing import Any, Final

import trio

from cosine_p2p.transport.light.library import (
    ID,
    MAX_WINDOW_SIZE,
    BaseLibp2pError,
    NoiseTransport,
    RawConnection,
    RawConnError,
    Yamux,
    YamuxStream,
    encode_delim,
    read_varint_prefixed_bytes_limited,
)

logger = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 2 * MAX_WINDOW_SIZE
"""Bounds memory for all streams of a connection: two full windows of yamux."""
WRITE_TIMEOUT_S: Final = 10.0
"""A peer that takes nothing for so long is gone."""


class Unreachable(Exception):
    """Why a peer cannot be reached at an address; the text is a short clause."""


class NotServed(Unreachable):
    """The peer answers, but does not speak the protocol."""


class Muxer(Yamux):
    """yamux that a cancelled task cannot garble and a peer cannot fill without bound."""

    def __init__(self, secured: Any, peer: ID, cut: Callable[[], None]) -> None:
        super().__init__(secured, peer, is_initiator=True)
        self.cut = cut

    async def _write_frame(self, data: bytes) -> None:
        # Half a frame would make nonsense of every stream of the connection: it is written whole or not survived.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + WRITE_TIMEOUT_S):
            return await super()._write_frame(data)
        self.cut()
        raise RawConnError(f"it has read nothing for {WRITE_TIMEOUT_S:g} s")

    async def _read_data_body(self, length: int) -> bytes:
        if length + sum(map(len, self.stream_buffers.values())) > MAX_UNREAD_BYTES:
            # The one error after which yamux ends the connection instead of reading on.
            raise trio.TooSlowError
        return await super()._read_data_body(length)


class Connection:
    """A connection to one peer, at `maddr` if that is known. It lives as long as `run`."""

    def __init__(self, muxer: Muxer) -> None:
        self.maddr = ""
        self._muxer = muxer
        self._scope = trio.CancelScope()

    @property
    def is_alive(self) -> bool:
        return not (self._scope.cancel_called or self._muxer.event_shutting_down.is_set())

    @property
    def is_idle(self) -> bool:
        return not self._muxer.streams

    async def run(self) -> None:
        """Until the peer leaves or `end`; then every stream has ended."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._refuse_all)
                    await self._muxer.start()
                    nursery.cancel_scope.cancel()
        except Exception:
            logger.debug("a connection failed", exc_info=True)
        finally:
            # Closing tells the peer, if it still listens.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.5):
                await self._muxer.close()

    def end(self) -> None:
        """Cut the connection at once."""
        # First the socket: a frame that is being written into it is not cancelled.
        self._muxer.cut()
        self._scope.cancel()

    async def open(self, protocol: str) -> YamuxStream:
        """A new stream. Raises `NotServed`, and `Unreachable` if the connection breaks."""
        try:
            await self._muxer.event_started.wait()
            stream = await self._muxer.open_stream()
            try:
                await negotiate(stream, protocol)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await stream.reset()
                raise
        except (BaseLibp2pError, ValueError) as error:
            raise Unreachable(f"the connection broke ({type(error).__name__})") from error
        return stream

    async def _refuse_all(self) -> None:
        """Nobody opens streams to a client."""
        try:
            while True:
                await (await self._muxer.accept_stream()).reset()
        except BaseLibp2pError:
            return


async def secure(raw: RawConnection, noise: NoiseTransport, peer_id: str, cut: Callable[[], None]) -> Connection:
    """Shake hands; `cut` ends what lies below at once.

    Raises `Unreachable` if another peer answers, and whatever py-libp2p makes of a handshake that fails.
    """
    peer = ID.from_string(peer_id)
    await negotiate(raw, "/noise")
    secured = await noise.secure_outbound(raw, peer)
    if secured.get_remote_peer() != peer:
        raise Unreachable("another peer answers")
    await negotiate(secured, "/yamux/1.0.0")
    return Connection(Muxer(secured, peer, cut))


async def negotiate(stream: Any, protocol: str) -> None:
    """Agree on a protocol (multistream-select 1.0.0), in one round trip where py-libp2p takes two.

    Raises `NotServed`, and what py-libp2p raises for a broken stream.
    """
    lines = ("/multistream/1.0.0", protocol)
    await stream.write(b"".join(encode_delim(line.encode()) for line in lines))
    for line in lines:
        # The names of protocols are far shorter.
        answer = await read_varint_prefixed_bytes_limited(stream, 1024)
        if answer != f"{line}\n".encode():
            raise NotServed(f"it does not serve {protocol}")
