"""The same client in virtual time: `first_client` over emulated links, with a bootstrap node and a verifier.

Everything but the machine and its links is the product's code: how a light client joins, whom it asks for records
and for the tokenizer, and the request. Nothing but the way between peers and the verifier's passes takes time.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cosine_lab.emulation.links import INITIAL_WINDOW_BYTES, LinkModel, LinkTable
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import VirtualLoop
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.engine.curve import CostCurve
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.zoo import folder
from cosine_p2p.access import Access
from cosine_p2p.directory.dht import DhtDirectory, MemoryCells
from cosine_p2p.directory.directory import Directory
from cosine_p2p.network import joining
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.addresses import parse_initial_peers
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.transport.light.light import LightConfig, LightTransport
from cosine_p2p.transport.light.sockets import EarlySockets
from cosine_p2p.transport.round_trips import FULL, LIGHT
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import NodeRecord, Role
from tests.network.first_client import ask_twice, home, kept

TARGET: Final = "emulated"
BOOT: Final = numbered_identity(1)
VERIFIER: Final = numbered_identity(2)
VOCAB_TOKENS: Final = 4096
ROOM_TOKENS: Final = 4096


class EmulatedLight:
    """Implements what is used of `LightTransport` over an emulated network."""

    def __init__(self, config: LightConfig, transport: MemoryTransport) -> None:
        self.peer_id = config.identity.peer_id
        addresses = parse_initial_peers(config.joined_by or config.initial_peers)
        self.initial_peers = tuple(dict.fromkeys(address.peer_id for address in addresses))
        self.dial, self.close, self.address_of = transport.dial, transport.close, transport.address_of
        self._config = config
        self._maddrs: dict[str, tuple[str, ...]] = {}
        for peer_id, announced in config.dialled_soon.items():
            self.note_addresses(peer_id, announced)
        self._joining: list[asyncio.Task[None]] = []

    @property
    def met(self) -> frozenset[str]:
        return frozenset(self._maddrs)

    @classmethod
    async def start(cls, config: LightConfig, transport: MemoryTransport) -> "EmulatedLight":
        """Connect to all peers to join by or dialled soon, and return when one of them has answered."""
        light = cls(config, transport)
        peer_ids = dict.fromkeys((*light.initial_peers, *config.dialled_soon))
        light._joining = [asyncio.ensure_future(transport.connect(peer_id)) for peer_id in peer_ids]
        await asyncio.wait(light._joining, return_when=asyncio.FIRST_COMPLETED)
        return light

    def note_addresses(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._maddrs[peer_id] = tuple(maddrs)

    def maddrs_of(self, peer_id: str) -> tuple[str, ...]:
        known = (*self._config.initial_peers, *self._config.joined_by, *self._maddrs.get(peer_id, ()))
        return tuple(dict.fromkeys(maddr for maddr in known if maddr.endswith(f"/p2p/{peer_id}")))


class AtOnce(ThreadPoolExecutor):
    """Runs what is handed to it before it returns: in virtual time there are no threads."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(slots=True)
class _Announced:
    """A directory in cells whose records are of today, and of a target that no name stands for already."""

    inner: Directory

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        at = (f"/ip4/192.0.2.9/tcp/4001/p2p/{record.peer_id}",)
        dated = replace(record, target=TARGET, addresses=at, issued_at_s=time.time(), lifetime_s=300.0)
        await self.inner.announce(dated, [TARGET])

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        return await self.inner.find(role, target, wanted=wanted)

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return None


def emulated(folder_of_client: Path, *, rtt_s: float, curve: CostCurve) -> dict[str, float]:
    """What `first_client` tells, of a light client whose files lie in a folder."""
    with home(folder_of_client), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_default_executor(AtOnce(1))
        return runner.run(_asked(rtt_s, curve))


async def _asked(rtt_s: float, curve: CostCurve) -> dict[str, float]:
    files = TokenizerFiles.read(folder("target"))
    assert files is not None
    nodes = frozenset((BOOT.peer_id, VERIFIER.peer_id))
    # Nodes are beside each other, and everybody else is far from them.
    link = LinkModel(one_way_s=rtt_s / 2, initial_window_bytes=INITIAL_WINDOW_BYTES)
    links = LinkTable(seed=0, default=link, ring=nodes)
    network = MemoryNetwork(routes=links.route, round_trips=lambda peer_id: FULL if peer_id in nodes else LIGHT)
    cells = MemoryCells(network=DEFAULT_NETWORK, clock=time.time)

    def directory_of(identity: Identity) -> Directory:
        return _Announced(DhtDirectory(cells, identity, network=DEFAULT_NETWORK))

    async def read(cell: str) -> Sequence[bytes]:
        return tuple((await cells.read([cell]))[cell].values())

    async def start(config: LightConfig, early: object) -> EmulatedLight:
        return await EmulatedLight.start(config, network.join(config.identity.peer_id, config.gate))

    async def call_at_once(check: Callable[[], None]) -> None:
        check()

    swarm = SimulatedSwarm(network, directory_of=directory_of, tokenizer_digest=files.digest)
    async with swarm:
        boot = swarm.join(BOOT)
        engine = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, pool_tokens=ROOM_TOKENS)
        verifier = await swarm.verifier(engine, curve=curve, identity=VERIFIER)
        for transport in (boot, verifier.transport):
            await transport.serve(DISCOVER, DiscoverService(read, files).handle)
        with patch.object(LightTransport, "start", start), patch.object(EarlySockets, "begin"):
            address = f"/ip4/192.0.2.1/tcp/4001/p2p/{BOOT.peer_id}"
            join = joining([address], access=Access(), transport="light", **kept(TARGET))
            took_s = await ask_twice(join, target=TARGET, offload=call_at_once)
        await boot.close()
    return took_s
