"""A transport over emulated links: every peer seems further away than it is."""

import asyncio

from cosine_lab.emulation.round_trips import Openings, RoundTrips
from cosine_p2p.transport.base import Stream, StreamHandler, Transport
from cosine_p2p.transport.delay import DelayedStream, delayed


class DelayedTransport:
    """A transport whose peers all seem further away than they are, by `one_way_s`.

    The first stream to a peer, and others, wait as if they took `round_trips` over such a way.
    """

    def __init__(self, transport: Transport, one_way_s: float, *, round_trips: RoundTrips) -> None:
        self._transport = transport
        self._one_way_s = one_way_s
        self._openings = Openings(round_trips)

    @property
    def peer_id(self) -> str:
        return self._transport.peer_id

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        now_s = asyncio.get_running_loop().time
        round_trips = sum(self._openings.round_trips(peer_id, now_s=now_s()))
        await asyncio.sleep(2 * self._one_way_s * round_trips)
        stream = await self._transport.dial(peer_id, protocol)
        self._openings.connect(peer_id, now_s())
        return DelayedStream(stream, self._one_way_s, lambda: self._openings.note_heard(peer_id, now_s()))

    async def address_of(self, peer_id: str) -> str:
        return await self._transport.address_of(peer_id)

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        await self._transport.serve(protocol, delayed(handler, one_way_s=self._one_way_s))

    async def close(self) -> None:
        await self._transport.close()
