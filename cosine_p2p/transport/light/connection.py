"""A secured connection of a light client: noise and yamux over a byte stream. Runs in the trio thread."""

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
    Reader,
    Yamux,
    encode_delim,
    read_varint_prefixed_bytes_limited,
)

logger = logging.getLogger(__name__)

_MULTISTREAM: Final = "/multistream/1.0.0"
MAX_UNREAD_BYTES: Final = 2 * MAX_WINDOW_SIZE  # Bounds the memory of all streams: two full windows of yamux.
WRITE_TIMEOUT_S: Final = 10.0  # A peer that reads nothing for this long is lost.


class Unreachable(Exception):
    """A peer cannot be reached at an address; the text gives the reason as a short clause."""


class NotServed(Unreachable):
    """The peer answers, but does not speak the protocol."""


FRESH_S: Final = 3.0
"""A connection on which something was received this recently is alive; on others a stream is used only after the
peer has answered. Heartbeats are more frequent."""

WRITES_WITHIN_S: Final = 0.005  # A reader that has not written for this long sends only the proposal.


class Proposed(Reader):
    """A stream on which a protocol is proposed; data is sent before the peer's answer.

    multistream-select 1.0.0 allows this, and it saves a round trip. The proposal is sent with the first data, since
    a new connection may send only ten packets before an answer (RFC 6928). `heard_at_s` is trio's time.
    """

    def __init__(self, below: Any, protocol: str) -> None:
        self._below = below
        self._protocol = protocol
        self._has_begun = trio.Event()
        self._is_agreed = False
        self.heard_at_s = trio.current_time()

    async def propose(self) -> None:
        await self.write(b"")

    async def agree(self) -> None:
        """Wait for the answer. Raises `NotServed`, and py-libp2p's errors for a broken stream."""
        if self._is_agreed:
            return
        with trio.move_on_after(WRITES_WITHIN_S):
            await self._has_begun.wait()
        if not self._has_begun.is_set():
            await self.propose()
        for line in (_MULTISTREAM, self._protocol):
            try:
                # The names of protocols are far shorter.
                answer = await read_varint_prefixed_bytes_limited(self._below, 1024)
            except ValueError:
                answer = b""
            if answer != f"{line}\n".encode():
                raise NotServed(f"it does not serve {self._protocol}")
        self._is_agreed = True

    async def read(self, n: int | None = None) -> bytes:
        await self.agree()
        data: bytes = await self._below.read(n)
        self.heard_at_s = trio.current_time()
        return data

    async def write(self, data: bytes) -> None:
        if not self._has_begun.is_set():
            self._has_begun.set()
            data = b"".join(encode_delim(line.encode()) for line in (_MULTISTREAM, self._protocol)) + data
        await self._below.write(data)

    async def close(self) -> None:
        await self._below.close()

    async def reset(self) -> None:
        await self._below.reset()


class Muxer(Yamux):
    """yamux that a cancelled task cannot corrupt, with a bound on unread data."""

    def __init__(self, secured: Any, peer: ID, cut: Callable[[], None]) -> None:
        super().__init__(secured, peer, is_initiator=True)
        self.cut = cut

    async def _write_frame(self, data: bytes) -> None:
        # Half a frame would corrupt every stream, so a frame is written whole or the connection is cut.
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
    """A connection to one peer, at `maddr` if known. It is open while `run` runs."""

    def __init__(self, muxer: Muxer, secured: Proposed) -> None:
        self.maddr = ""
        self._muxer = muxer
        self._secured = secured
        self._scope = trio.CancelScope()

    @property
    def is_alive(self) -> bool:
        return not (self._scope.cancel_called or self._muxer.event_shutting_down.is_set())

    @property
    def is_idle(self) -> bool:
        return not self._muxer.streams

    async def run(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._refuse_all)
                    await self._muxer.start()
                    nursery.cancel_scope.cancel()
        except Exception:
            logger.debug("a connection failed", exc_info=True)
        finally:
            # Closing notifies the peer.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.5):
                await self._muxer.close()

    def end(self) -> None:
        """Cut the connection at once."""
        # The socket first: a frame that is being written is not cancelled.
        self._muxer.cut()
        self._scope.cancel()

    async def open(self, protocol: str) -> Proposed:
        """Open a stream. Raises `Unreachable`; the first read, or after a silence this, raises `NotServed`."""
        try:
            await self._muxer.event_started.wait()
            stream = await self._muxer.open_stream()
            try:
                proposed = Proposed(stream, protocol)
                if trio.current_time() - self._secured.heard_at_s > FRESH_S:
                    await proposed.propose()
                    await proposed.agree()
            except BaseException:
                with trio.CancelScope(shield=True):
                    await stream.reset()
                raise
        except BaseLibp2pError as error:
            raise Unreachable(f"the connection broke ({type(error).__name__})") from error
        return proposed

    async def _refuse_all(self) -> None:
        try:
            while True:
                await (await self._muxer.accept_stream()).reset()
        except BaseLibp2pError:
            return


async def secure(
    raw: RawConnection | Proposed, noise: NoiseTransport, peer_id: str, cut: Callable[[], None]
) -> Connection:
    """Raise `Unreachable` if another peer answers, and py-libp2p's errors. `cut` closes the underlying socket."""
    peer = ID.from_string(peer_id)
    # The handshake only reads and writes.
    opened: Any = Proposed(raw, "/noise")
    shaken = await noise.secure_outbound(opened, peer)
    if shaken.get_remote_peer() != peer:
        raise Unreachable("another peer answers")
    secured = Proposed(shaken, "/yamux/1.0.0")
    # The peer waits for it, even if no stream follows.
    await secured.propose()
    return Connection(Muxer(secured, peer, cut), secured)
