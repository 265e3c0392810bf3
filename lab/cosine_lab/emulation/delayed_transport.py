"""A transport that adds latency to every link."""

import asyncio

from cosine_lab.emulation.round_trips import Openings, RoundTrips
from cosine_p2p.transport.base import Stream, StreamHandler, Transport
from cosine_p2p.transport.delay import DelayedStream, delayed


class DelayedTransport:
    """A transport that adds `one_way_s` to each direction, and `round_trips` of it to opening a stream."""

    def __init__(self, transport: Transport, one_way_s: float, *, round_trips: RoundTrips) -> None:
        self._transport = transport
        self._one_way_s = one_way_s
        self._openings = Openings(round_trips)

    @property
    def peer_id(self) -> str:
        return self._transport.peer_id

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        now_s = asyncio.get_running_loop().time
        round_trips = self._openings.round_trips(peer_id, now_s=now_s())
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
