"""A node in its local network: it advertises itself, and without initial peers enters the DHT of those it finds.

Nodes that start at the same moment find each other, since each keeps advertising and looking.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface
from itertools import count
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.lan import listening_at, local_links, open_lan
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import PeerLost
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)

FIRST_S: Final = 2.0
"""A node that nobody answers is alone after this time; neighbours answer within half a second."""
LOOK_S: Final = 0.5
"""The interval of looks at the neighbours that were heard."""
LOOKS_AT_LINKS: Final = 10
"""One in so many looks is also at the addresses of this machine, which seldom change."""
MEET_AGAIN_S: Final = 15.0
"""Between two meetings with one neighbour, which may have gone, or was never there."""


class LocalNetwork:
    """Meets neighbours of a node if it `looks`, and advertises it from `be_found` to `close`.

    `emit` takes the event `neighbour` for each that is met.
    """

    def __init__(self, transport: HivemindTransport, emit: Emit, *, looks: bool) -> None:
        self._transport = transport
        self._emit = emit
        self._looks = looks
        self._tried = Remembered[str, bool](MAX_KNOWN_PEERS, forgotten_s=MEET_AGAIN_S)
        self._has_met = asyncio.Event()
        self._answers = False
        self._staying = asyncio.ensure_future(self._run())

    async def first(self) -> None:
        """Wait until a neighbour is met, or none has answered in time."""
        if self._looks and self._ports():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self._has_met.wait()

    def be_found(self) -> None:
        """Advertise the node soon: it answers what clients ask."""
        self._answers = True

    async def close(self) -> None:
        await end_all([self._staying])

    def _ports(self) -> dict[IPv4Interface, int]:
        return listening_at(self._transport.listens_at, local_links())

    async def _run(self) -> None:
        refused: Mapping[IPv4Interface, int] = {}
        while True:
            ports = self._ports()
            refused = refused if ports else ports
            try:
                if ports != refused:
                    await self._stay(ports)
            except OSError as error:
                LOG.warning("This node is not found in the local network: %s", error)
                refused = ports
            except Exception:
                LOG.exception("the local network is left")
                refused = ports
            await asyncio.sleep(LOOKS_AT_LINKS * LOOK_S)

    async def _stay(self, ports: Mapping[IPv4Interface, int]) -> None:
        """Advertise and look until the addresses of this machine change. Raises `OSError`."""
        network, peer_id = self._transport.config.network, self._transport.peer_id
        is_advertised = False
        async with open_lan(list(ports)) as lan:
            for look in count(1):
                if self._answers and not is_advertised:
                    await lan.advertise(network, peer_id, ports)
                    is_advertised = True
                if self._looks:
                    neighbours = await lan.neighbours(network)
                    await asyncio.gather(*(self._meet(*each) for each in neighbours.items() if each[0] != peer_id))
                await asyncio.sleep(LOOK_S)
                if look % LOOKS_AT_LINKS == 0 and self._ports() != ports:
                    return

    async def _meet(self, peer_id: str, maddrs: Sequence[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._tried.get(peer_id, now_s):
            return
        self._tried.note(peer_id, True, now_s)
        try:
            if await self._transport.meet(peer_id, maddrs):
                self._emit("neighbour", {"peer_id": peer_id, "maddrs": list(maddrs)})
            self._has_met.set()
        except PeerLost as lost:
            LOG.debug("a neighbour in the local network is not met: %s", lost)
