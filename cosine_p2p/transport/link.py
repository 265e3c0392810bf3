"""The client's end of streams: one long-lived link for each peer and protocol, shared by all requests."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import FLOODED, Channel, StepCounts, serving_budget
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.audit import AskAudit
from cosine_protocol.codec import Message
from cosine_protocol.discover import AskRecords, AskStatus
from cosine_protocol.draft import Draft, Fragment
from cosine_protocol.errors import ErrorCode, OlderPeer, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.fields import decode_body
from cosine_protocol.request import Request
from cosine_protocol.stream import Account, Error, features_of
from cosine_protocol.stream import Final as FinalMessage


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for one request, with its signed body decoded; or the end of the link, with the reason `lost`."""

    peer_id: str
    protocol: str
    message: Message | None
    body: Draft | Account | None = None
    lost: str | None = None


Sink = Callable[[Delivery], None]


class PeerLink(Protocol):
    """A connection to a peer that several requests share, such as `Link`."""

    @property
    def peer_id(self) -> str: ...

    @property
    def features(self) -> frozenset[str] | None:
        """The features of both ends; None before the peer's hello."""
        ...

    async def named_features(self) -> frozenset[str]:
        """Wait for the peer's features. Raises `PeerLost`."""
        ...

    @property
    def rtt_s(self) -> float: ...

    @property
    def remote_progress(self) -> StepCounts: ...

    def subscribe(self, number: int, sink: Sink) -> None: ...

    def unsubscribe(self, number: int) -> None: ...

    def post(self, message: Message) -> bool: ...


class PeerLinks(Protocol):
    async def get(self, peer_id: str, protocol: str) -> PeerLink:
        """The live link to a peer, opened if needed. Raises `PeerLost`."""
        ...

    def alive(self, peer_id: str, protocol: str) -> PeerLink | None: ...


async def check_knows(link: PeerLink, request: Request) -> None:
    """Wait for a peer's features. Raises `PeerLost`, and `OlderPeer` if it lacks one that a request needs."""
    needed = features_of(request)
    if needed and not needed <= await link.named_features():
        raise OlderPeer(link.peer_id, f"its version knows no {' or '.join(sorted(needed))}")


class Link:
    """A channel that passes messages to requests by their numbers. `on_flood` is called if the peer floods."""

    def __init__(self, channel: Channel, on_flood: Callable[[], None] = lambda: None) -> None:
        self.channel = channel
        self.is_alive = True
        self._on_flood = on_flood
        self._sinks: dict[int, Sink] = {}
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def open(
        cls,
        transport: Transport,
        peer_id: str,
        protocol: str,
        *,
        budget: CallBudget | None = None,
        on_flood: Callable[[], None] = lambda: None,
    ) -> "Link":
        """Dial a peer. Raises `PeerLost`."""
        channel = Channel(await transport.dial(peer_id, protocol), protocol, budget=budget)
        await channel.__aenter__()
        return cls(channel, on_flood)

    @property
    def peer_id(self) -> str:
        return self.channel.peer_id

    @property
    def features(self) -> frozenset[str] | None:
        return self.channel.features if self.channel.greeted.is_set() else None

    async def named_features(self) -> frozenset[str]:
        if not self.channel.greeted.is_set():
            greeting = asyncio.ensure_future(self.channel.greeted.wait())
            try:
                await asyncio.wait((greeting, self._reader), return_when=asyncio.FIRST_COMPLETED)
            finally:
                greeting.cancel()
        if not self.channel.greeted.is_set():
            raise PeerLost(self.peer_id, "the link ended")
        return self.channel.features

    @property
    def remote_progress(self) -> StepCounts:
        return self.channel.remote_progress

    @property
    def rtt_s(self) -> float:
        """Measured round-trip time in seconds, 0 before the first answer."""
        return self.channel.rtt_s or 0.0

    def subscribe(self, number: int, sink: Sink) -> None:
        self._sinks[number] = sink
        self.channel.requests = len(self._sinks)

    def unsubscribe(self, number: int) -> None:
        self._sinks.pop(number, None)
        self.channel.requests = len(self._sinks)

    def post(self, message: Message) -> bool:
        """Send without waiting; False if the peer reads too slowly."""
        return self.channel.post(message)

    async def close(self) -> None:
        await end_all([self._reader])
        await self.channel.__aexit__(None, None, None)

    async def ask(self, question: AskRecords | AskStatus | AskAudit) -> Message:
        """Send a question and return the answer. Raises `PeerLost`, and `PeerError` if the peer refuses."""
        delivered: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def note(delivery: Delivery) -> None:
            if not delivered.done():
                delivered.set_result(delivery)

        self.subscribe(question.number, note)
        try:
            if not self.post(question):
                raise PeerLost(self.channel.peer_id, "it reads too slowly")
            delivery = await delivered
        finally:
            self.unsubscribe(question.number)
        match delivery.message:
            case None:
                raise PeerLost(delivery.peer_id, delivery.lost or "the link ended")
            case Error(code=code, message=message, retry_after_s=retry_after_s):
                raise PeerError(code, message, retry_after_s)
            case answer:
                return answer

    async def _read(self) -> None:
        channel, reason = self.channel, "the link was closed"
        try:
            while True:
                message = await channel.receive()
                body = _signed_body(message)
                number = getattr(message if body is None else body, "number", 0)
                if isinstance(message, Error) and number == 0:
                    if message.code == ErrorCode.NOT_ADMITTED:
                        raise PeerLost(channel.peer_id, f"it does not admit us: {message.message}")
                    raise RemoteProtocolError(message.message)
                if sink := self._sinks.get(number):
                    sink(Delivery(channel.peer_id, channel.protocol, message, body))
        except PeerLost as lost:
            reason = lost.reason
            if channel.is_flooded:
                self._on_flood()
        except RemoteProtocolError as error:
            reason = f"it broke the protocol: {error}"
        finally:
            self.is_alive = False
            for sink in list(self._sinks.values()):
                sink(Delivery(channel.peer_id, channel.protocol, None, lost=reason))


def _signed_body(message: Message) -> Draft | Account | None:
    match message:
        case Fragment():
            return decode_body(Draft, message.body)
        case FinalMessage():
            return decode_body(Account, message.body)
    return None


@dataclass(slots=True, weakref_slot=True)
class _Opening:
    """A link being dialled, or the failure of its dial, for all tasks that wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    failure: tuple[str, float | None] | None = None


class Links:
    """All links of a client, opened when needed and kept. `on_flood` is called with a peer that floods."""

    def __init__(self, transport: Transport, *, on_flood: Callable[[str], None] = lambda _: None) -> None:
        self._transport = transport
        self._on_flood = on_flood
        self._reads = serving_budget()
        self._links: dict[tuple[str, str], Link] = {}
        # An entry disappears with the last task that waits for it.
        self._opening = WeakValueDictionary[tuple[str, str], _Opening]()

    async def get(self, peer_id: str, protocol: str) -> Link:
        """The live link to a peer, dialled if needed, once for all waiting tasks. Raises `PeerLost`."""
        opening = self._opening.setdefault((peer_id, protocol), _Opening())
        opening.waiting += 1
        try:
            async with opening.lock:
                if opening.failure is not None:
                    reason, retry_after_s = opening.failure
                    raise PeerLost(peer_id, reason, retry_after_s=retry_after_s)
                return await self._live(peer_id, protocol)
        except PeerLost as lost:
            opening.failure = lost.reason, lost.retry_after_s
            raise
        finally:
            opening.waiting -= 1
            if not opening.waiting:
                opening.failure = None

    async def _live(self, peer_id: str, protocol: str) -> Link:
        key = (peer_id, protocol)
        link = self._links.get(key)
        if link is None or not link.is_alive:
            if link is not None:
                await link.close()
            if self._reads.is_silenced(peer_id, now_s=asyncio.get_running_loop().time()):
                raise PeerLost(peer_id, FLOODED)
            on_flood = partial(self._on_flood, peer_id)
            link = await Link.open(self._transport, peer_id, protocol, budget=self._reads, on_flood=on_flood)
            self._links[key] = link
        return link

    def alive(self, peer_id: str, protocol: str) -> Link | None:
        link = self._links.get((peer_id, protocol))
        return link if link is not None and link.is_alive else None

    async def drop(self, peer_id: str, protocol: str) -> None:
        link = self._links.pop((peer_id, protocol), None)
        if link is not None:
            await link.close()

    @property
    def lost_links(self) -> int:
        """The number of links that were lost and not opened again."""
        return sum(not link.is_alive for link in self._links.values())

    def traffic(self) -> tuple[int, int]:
        channels = [link.channel for link in self._links.values()]
        return sum(c.bytes_sent for c in channels), sum(c.bytes_received for c in channels)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)
        self._links.clear()
