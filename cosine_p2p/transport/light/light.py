"""Streams of a light client over py-libp2p, without torch, hivemind or a daemon. It dials and is not dialled."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import trio

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS, Address, AddressBook, DialPolicy, parse_initial_peers
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.hosts import hosts_of
from cosine_p2p.transport.light.host import LightHost
from cosine_p2p.transport.light.stream import LightStream
from cosine_p2p.transport.light.trio_thread import TrioThread
from cosine_p2p.transport.patience import end_all
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import LocalProtocolError, PeerLost
from cosine_protocol.identity import Identity

DIAL_TIMEOUT_S: Final = 4.0  # The same as that of a client's full transport.

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LightConfig:
    """Settings of a light client. `initial_peers` are the user's multiaddrs, which end in `/p2p/<peer id>`.

    The client joins through the first of `joined_by` (default: the initial peers) that answers. The peers in
    `dialled_soon`, by addresses, are dialled at the same time. All but the initial peers are dialled as strangers.
    """

    identity: Identity
    initial_peers: tuple[str, ...]
    joined_by: tuple[str, ...] = ()
    dialled_soon: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dial_timeout_s: float = DIAL_TIMEOUT_S
    gate: PeerGate = field(default_factory=PeerGate)


class LightTransport:
    """Implements `Transport`, except that it cannot serve. Created by `start`, ended by `close`."""

    def __init__(
        self, config: LightConfig, given: Sequence[Address], thread: TrioThread, policy: DialPolicy
    ) -> None:
        self.peer_id = config.identity.peer_id
        self._config = config
        # Only the user's addresses: an address from a record may belong to a private network.
        self._given = tuple(given)
        self._joined_by = parse_initial_peers(config.joined_by) if config.joined_by else list(given)
        self.initial_peers = tuple(dict.fromkeys(address.peer_id for address in self._joined_by))
        self._book = AddressBook()
        for peer_id, maddrs in config.dialled_soon.items():
            self._book.note(peer_id, maddrs)
        self._met = Remembered[str, bool](MAX_KNOWN_PEERS)
        self._thread = thread
        # The place of the key's seed in an identity file.
        seed = config.identity.to_file_bytes()[4:36]
        self._host = LightHost(seed, thread.spawn, dial_timeout_s=config.dial_timeout_s, given=given, policy=policy)
        self._streams: set[LightStream] = set()
        self._joining: list[asyncio.Task[str | None]] = []

    @classmethod
    async def start(cls, config: LightConfig) -> "LightTransport":
        """Raises `UsageError` for invalid addresses, and `PeerLost` if no peer answers."""
        given = parse_initial_peers(config.initial_peers)
        policy = DialPolicy(await hosts_of(given))
        transport = cls(config, given, await TrioThread.start("cosine-libp2p"), policy)
        try:
            await transport._connect_to_one()
        except BaseException:
            await transport.close()
            raise
        return transport

    def note_addresses(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._book.note(peer_id, maddrs)

    def maddrs_of(self, peer_id: str) -> tuple[str, ...]:
        """The dialable addresses of a peer, which end in its id."""
        known = (*self._config.initial_peers, *self._config.joined_by)
        given = (maddr for maddr in known if maddr.endswith(f"/p2p/{peer_id}"))
        return tuple(dict.fromkeys([*given, *self._book.of(peer_id).values()]))

    @property
    def met(self) -> frozenset[str]:
        return frozenset(peer_id for peer_id, _ in self._met.items())

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        """Open a stream. Raises `PeerLost` with the reason, at the latest soon after `dial_timeout_s`."""
        self._config.gate.check_dial(peer_id)
        opening = self._thread.call(
            partial(self._host.open, peer_id, self._addresses(peer_id), protocol),
            undo=lambda muxed: self._thread.post(self._thread.spawn, muxed.reset),
        )
        muxed = await self._in_time(peer_id, opening)
        self._met.note(peer_id, True)
        stream = LightStream(peer_id, muxed, self._thread, self._streams.discard)
        self._streams.add(stream)
        return await self._config.gate.enter(stream)

    async def address_of(self, peer_id: str) -> str:
        async def look() -> str:
            return self._host.address_of(peer_id)

        return await self._in_time(peer_id, self._thread.call(look))

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        raise LocalProtocolError("a light client cannot serve")

    async def close(self) -> None:
        """End every stream and leave, after a moment for data that is still being sent."""
        await end_all(self._joining)
        streams = list(self._streams)
        for stream in streams:
            stream.close()

        async def leave() -> None:
            with trio.move_on_after(0.5):
                for stream in streams:
                    await stream.has_ended.wait()
            self._host.end()

        try:
            with suppress(trio.RunFinishedError):
                await self._thread.call(leave)
        finally:
            await self._thread.close()

    def _addresses(self, peer_id: str) -> list[Address]:
        known = [address for address in (*self._given, *self._joined_by) if address.peer_id == peer_id]
        return list(dict.fromkeys([*known, *self._book.of(peer_id)]))

    async def _connect_to_one(self) -> None:
        """Return at the first answer; other dials continue, for the directory. Raises `PeerLost`."""

        async def failure(peer_id: str) -> str | None:
            work = partial(self._host.connect, peer_id, self._addresses(peer_id))
            try:
                if peer_id in self._config.dialled_soon:
                    self._config.gate.check_dial(peer_id)
                await self._in_time(peer_id, self._thread.call(work))
            except PeerLost as lost:
                return lost.reason
            return None

        peer_ids = dict.fromkeys((*self.initial_peers, *self._config.dialled_soon))
        self._joining = [asyncio.ensure_future(failure(peer_id)) for peer_id in peer_ids]
        reasons = []
        for attempt in asyncio.as_completed(self._joining):
            reason = await attempt
            if reason is None:
                return
            reasons.append(reason)
        raise PeerLost(", ".join(self._config.initial_peers), "; ".join(dict.fromkeys(reasons)))

    async def _in_time(self, peer_id: str, answer: Awaitable[_T]) -> _T:
        try:
            # The dial's own timeout gives the better reason; this one applies even if a network stack blocks.
            async with asyncio.timeout(self._config.dial_timeout_s + 0.5):
                return await answer
        except TimeoutError:
            raise PeerLost(peer_id, f"no answer within {self._config.dial_timeout_s:g} s") from None
        except trio.RunFinishedError:
            raise PeerLost(peer_id, "we have left the network") from None
