"""The measurements by which a node finds its place: now and then it asks another node of its target for its status.

Only nodes are asked, by their signed records, and never clients: those are anybody, and could push a node about. An
answer brings the other's coordinate as it is now, and the time that it took is the round-trip time.
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
from cosine_protocol.errors import CosineError
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import NodeRecord, Role

LOG = logging.getLogger(__name__)
EAGER_LOOKS: Final = 120
"""Half as many leave estimates between 16 cities off by a fifth at the median (decision 30)."""
EAGER_PAUSE_S: Final = 10.0
"""A newcomer knows its place after twenty minutes."""
PAUSE_S: Final = 60.0
"""Routes change seldom."""
FIND_AGAIN_S: Final = 300.0
"""The lifetime of a record; a look-up is dearer than a look."""
WANTED: Final = 32
"""So many others of each role pin a point in space down well."""
TIMEOUT_S: Final = 10.0
"""What takes longer is no distance."""


class Surroundings:
    """Moves `vivaldi` by what is measured of other nodes of `target`. `rng` draws whom to ask."""

    def __init__(
        self, transport: Transport, directory: Directory, vivaldi: Vivaldi, *, target: str, rng: Random
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._vivaldi = vivaldi
        self._target = target
        self._rng = rng
        self._numbers = count(1)
        self._others: Sequence[NodeRecord] = ()

    @property
    def known(self) -> frozenset[str]:
        """The peer ids of the others that were found last."""
        return frozenset(record.peer_id for record in self._others)

    async def run(self) -> None:
        """Look at others until cancelled."""
        loop = asyncio.get_running_loop()
        found_at_s = loop.time()
        for look in count(1):
            # Nodes that were started together do not ask together.
            pause_s = EAGER_PAUSE_S if look <= EAGER_LOOKS else PAUSE_S
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
            if not self._others or loop.time() - found_at_s > FIND_AGAIN_S:
                self._others, found_at_s = await self._find_others(), loop.time()
            if self._others:
                await self.look_at(self._rng.choice(self._others).peer_id)

    async def _find_others(self) -> list[NodeRecord]:
        found: list[NodeRecord] = []
        for role in Role:
            try:
                found += await self._directory.find(role, self._target, wanted=WANTED)
            except CosineError as error:
                LOG.debug("no %ss to measure were found: %s", role, error)
        return [record for record in found if record.peer_id != self._transport.peer_id]

    async def look_at(self, peer_id: str) -> None:
        """Measure one node; one that does not answer, or says nothing of its place, is passed over."""
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
            self._vivaldi.note_rtt(status.coordinate, rtt_s)
