"""Full nodes on loopback for one test, and strangers with no rules."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.identity import Identity
from tests.cosine_p2p.samples import NETWORK
from tests.scenes import as_test

HOST: Final = "/ip4/127.0.0.1/tcp/0"


class Swarm:
    """Nodes made for one test."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._made = 0
        self.boot: tuple[str, ...] = ()

    def identity_file(self) -> Path:
        self._made += 1
        file = self._folder / f"identity{self._made}"
        load_identity(file)
        return file

    async def node(self, **settings: Any) -> HivemindTransport:
        settings = {"initial_peers": self.boot, "host_maddrs": (HOST,), "network": NETWORK} | settings
        transport = await HivemindTransport.start(TransportConfig(identity_file=self.identity_file(), **settings))
        self.keep(transport)
        self.boot = self.boot or await transport.visible_maddrs()
        return transport

    def keep(self, transport: HivemindTransport) -> None:
        """Close a node at the end."""
        self._stack.push_async_callback(transport.close)

    async def stranger(self) -> Any:
        """A DHT node of hivemind's own, with no rules; it may store what it likes where it can."""
        from cosine_p2p.transport.full.dht_node import node_id_of
        from cosine_p2p.transport.full.library import P2P, DHTNode

        p2p = await P2P.create(
            initial_peers=list(self.boot), host_maddrs=[HOST], auto_nat=False, nat_port_map=False
        )
        self._stack.push_async_callback(p2p.shutdown)
        return await DHTNode.create(p2p=p2p, node_id=node_id_of(p2p.peer_id), initial_peers=list(self.boot))

    async def owner(self) -> tuple[Identity, Any]:
        """A stranger with a key of ours, so that it can bring records of its own."""
        from cosine_p2p.transport.full.dht_node import node_id_of
        from cosine_p2p.transport.full.library import P2P, DHTNode

        file = self.identity_file()
        p2p = await P2P.create(
            initial_peers=list(self.boot),
            host_maddrs=[HOST],
            auto_nat=False,
            nat_port_map=False,
            identity_path=str(file),
            check_if_identity_free=False,
        )
        self._stack.push_async_callback(p2p.shutdown)
        node = await DHTNode.create(p2p=p2p, node_id=node_id_of(p2p.peer_id), initial_peers=list(self.boot))
        return load_identity(file), node


@contextlib.asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            yield Swarm(Path(folder), stack)


def _among_nodes(play: Callable[[Swarm], Awaitable[None]]) -> None:
    async def run() -> None:
        async with swarm() as made:
            await play(made)

    asyncio.run(run())


in_swarm: Final = as_test(_among_nodes, given=1)
