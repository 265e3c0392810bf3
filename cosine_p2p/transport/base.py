"""The interface of a transport: authenticated byte streams to peers named by their peer id."""

from collections.abc import Awaitable, Callable
from typing import Protocol


class Stream(Protocol):
    """A two-way byte stream. `peer_id` is proved by the transport's handshake."""

    @property
    def peer_id(self) -> str: ...

    async def read(self) -> bytes:
        """Read some bytes, `b""` at the end. Raises `PeerLost` if the peer does not serve the protocol."""
        ...

    async def write(self, data: bytes) -> None:
        """Send all of `data`, waiting for a slow peer. Raises `PeerLost`."""
        ...

    def close(self) -> None: ...

    def note_flood(self) -> None:
        """Report that this stream is closed because its peer floods. Never raises."""
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
        """The remote multiaddr of the connection to a peer; "" if unknown."""
        ...

    async def serve(self, protocol: str, handler: StreamHandler) -> None: ...

    async def close(self) -> None: ...
