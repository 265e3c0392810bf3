"""Measures the node's network coordinate by regularly asking other nodes of its target for their status.

An answer has the other's current coordinate, and its delay is the round-trip time. Only nodes with signed records
are asked: any client could manipulate the coordinate.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.survey import ask_status
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.link import Link
from cosine_protocol.discover import STATUS
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NodeRecord, Role

LOG = logging.getLogger(__name__)
EAGER_LOOKS: Final = 120
"""With half as many, the median error of estimates between 16 cities is a fifth (decision 30)."""
EAGER_PAUSE_S: Final = 10.0
"""A new node has a good coordinate after twenty minutes."""
PAUSE_S: Final = 60.0
"""Routes change rarely."""
FIND_AGAIN_S: Final = 300.0
"""The lifetime of a record; a look-up costs more than a measurement."""
WANTED: Final = 32
"""Enough nodes of each role for a good estimate."""
TIMEOUT_S: Final = 10.0
"""A longer delay is not a distance."""


class Surroundings:
    """Updates `vivaldi`, the node's coordinate, by measurements of other nodes. `rng` chooses the nodes."""

    def __init__(self, transport: Transport, directory: Directory, vivaldi: Vivaldi, *, rng: Random) -> None:
        self.vivaldi = vivaldi
        self._transport = transport
        self._directory = directory
        self._rng = rng
        self._numbers = count(1)
        self._others: Sequence[NodeRecord] = ()

    @property
    def known(self) -> frozenset[str]:
        """The peer ids of the nodes found by the last look-up."""
        return frozenset(record.peer_id for record in self._others)

    async def run(self, target: str) -> None:
        """Measure other nodes of a target until cancelled."""
        loop = asyncio.get_running_loop()
        found_at_s = loop.time()
        for look in count(1):
            # Random, so that nodes started together do not ask at the same time.
            pause_s = EAGER_PAUSE_S if look <= EAGER_LOOKS else PAUSE_S
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
            if not self._others or loop.time() - found_at_s > FIND_AGAIN_S:
                self._others, found_at_s = await self._find_others(target), loop.time()
            if self._others:
                await self.look_at(self._rng.choice(self._others).peer_id)

    async def _find_others(self, target: str) -> list[NodeRecord]:
        found: list[NodeRecord] = []
        for role in Role:
            try:
                found += await self._directory.find(role, target, wanted=WANTED)
            except CosineError as error:
                LOG.debug("no %ss to measure were found: %s", role, error)
        return [record for record in found if record.peer_id != self._transport.peer_id]

    async def look_at(self, peer_id: str) -> None:
        """Measure one node; ignore it if it does not answer or has no coordinate."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                link = await Link.open(self._transport, peer_id, STATUS)
                try:
                    status, rtt_s = await ask_status(link, self._numbers, is_new=True)
                finally:
                    await link.close()
        except (CosineError, TimeoutError) as error:
            LOG.debug("%s could not be measured: %s", peer_id, error)
            return
        if status.coordinate is not None:
            self.vivaldi.note_rtt(status.coordinate, rtt_s)
