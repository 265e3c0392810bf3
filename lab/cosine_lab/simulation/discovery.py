"""Discovery in a simulated swarm: real cells, records and checks, kept by one honest node that answers at once."""

import asyncio
from typing import Final

from cosine_lab.emulation.memory_directory import MemoryCells
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.dht.postings import RecordOpener
from cosine_p2p.directory.directory import Directory
from cosine_protocol.identity import Identity

NETWORK: Final = "simulation"
"""The name of the network in every cell's key."""


class SimulatedDht:
    """The single DHT of a swarm, in the virtual time of the running loop.

    A record's signature is checked once for all readers, since the result is the same for each.
    """

    def __init__(self) -> None:
        self._cells = MemoryCells(network=NETWORK, clock=_now_s)
        self._opener = RecordOpener()

    def directory(self, identity: Identity) -> Directory:
        """The directory as one peer reads and writes it."""
        return DhtDirectory(self._cells, identity, network=NETWORK, clock=_now_s, opener=self._opener)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
