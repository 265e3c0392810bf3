"""A chain as one of its stages serves it: what it runs on, and how its streams are read."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.operations import BadActivations
from cosine_node.engine.paged import PagedEngine
from cosine_node.stage.inbox import StageInbox
from cosine_p2p.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, MalformedMessage, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.layer_range import LayerRange
from cosine_protocol.stage_messages import Activations, BookOperation, FeedPass, Join


class ChainBooks(Protocol):
    """The sequences of one chain at this stage: `cosine_node.engine.stage_host.HostedChain`."""

    @property
    def books(self) -> PagedEngine: ...

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]: ...

    @property
    def close(self) -> Callable[[], None]: ...


class ChainHost(Protocol):
    """The layers that this stage holds: `cosine_node.engine.stage_host.StageHost`."""

    @property
    def layers(self) -> LayerRange: ...

    @property
    def numerics(self) -> str: ...

    @property
    def token_bytes(self) -> int: ...

    @property
    def pool_tokens(self) -> int: ...

    @property
    def free_tokens(self) -> int: ...

    def open(
        self, *, pool_tokens: int, window_pool_tokens: int | None, window_tokens: int | None, first_sequence: int
    ) -> ChainBooks: ...


class ServedChain:
    """A chain that a head has set up here. `ended` is set once nothing more is taken for it."""

    def __init__(self, join: Join, head: Channel, books: ChainBooks, inbox: StageInbox) -> None:
        self.join = join
        self.head = head
        self.hosted = books
        self.inbox = inbox
        self.next: Channel | None = None
        self.is_followed = False
        self.ended = asyncio.Event()
        self._failures: asyncio.Queue[PeerError] = asyncio.Queue()

    def fail(self, error: PeerError) -> None:
        """End the chain; its head reads why."""
        self._failures.put_nowait(error)

    async def raise_failure(self) -> None:
        """Wait until the chain fails, and raise why."""
        raise await self._failures.get()


async def read(channel: Channel, chain: ServedChain) -> None:
    """Fill the chain's inbox; while that is full nothing is read. Raises `PeerError` and what `receive` raises."""
    while True:
        await chain.inbox.room()
        message = await channel.receive()
        if not isinstance(message, BookOperation | FeedPass | Activations):
            raise MalformedMessage(f"unexpected {type(message).__name__}")
        try:
            chain.inbox.put(message)
        except BadActivations as error:
            raise PeerError(ErrorCode.BAD_ACTIVATIONS, str(error)) from None


async def hear(head: Channel) -> None:
    """Wait until the head's stream ends: it has nothing more to say to a stage that is not the first."""
    message = await head.receive()
    raise MalformedMessage(f"unexpected {type(message).__name__}")


async def listen(following: Channel) -> None:
    """Wait until the next stage ends its stream. Raises `PeerError`."""
    try:
        message = await following.receive()
    except (PeerLost, RemoteProtocolError) as error:
        raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {error}") from None
    sentence = message.message if isinstance(message, m.Error) else f"unexpected {type(message).__name__}"
    raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage: {sentence}")
