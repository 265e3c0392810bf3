"""The interface of a transport: authenticated byte streams to peers named by their peer id."""

from collections.abc import Awaitable, Callable
from typing import Protocol


class Stream(Protocol):
    """A two-way byte stream. `peer_id` is proved by the transport's handshake."""

    @property
    def peer_id(self) -> str: ...

    async def read(self) -> bytes:
        """Some bytes, `b""` at the end. Raises `PeerLost` if the peer turns out not to serve the protocol."""
        ...

    async def write(self, data: bytes) -> None:
        """Send all of `data`; waits while the peer is slow. Raises `PeerLost`."""
        ...

    def close(self) -> None: ...

    def note_flood(self) -> None:
        """Report that the peer loses this stream for a flood. Never raises."""
        ...


StreamHandler = Callable[[Stream], Awaitable[None]]


class Transport(Protocol):
    """Opens and accepts streams."""

    @property
    def peer_id(self) -> str: ...

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        """Open a stream. Raises `PeerLost` if a failure is known without a round trip."""
        ...

    async def address_of(self, peer_id: str) -> str:
        """The multiaddr at the other end of the connection to a peer, as seen here; "" where none is known."""
        ...

    async def serve(self, protocol: str, handler: StreamHandler) -> None: ...

    async def close(self) -> None: ...
