"""Full nodes on loopback for one test, hivemind's own nodes as strangers, and records that those store."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import PeerLost
from cosine_protocol.identity import Identity
from cosine_protocol.records import cell_name
from tests.cosine_p2p.samples import NETWORK, TARGET
from tests.scenes import as_test, in_real_time

HOST: Final = "/ip4/127.0.0.1/tcp/0"
ROOT: Final = cell_name(network=NETWORK, role="drafter", target=TARGET, prefix="")


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)
    stream.close()


async def lost(work: Awaitable[Any]) -> PeerLost:
    with pytest.raises(PeerLost) as caught:
        await work
    assert "\n" not in str(caught.value)
    return caught.value


class Swarm:
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

    async def node(self, *, gate_of: Callable[[str], PeerGate] | None = None, **settings: Any) -> HivemindTransport:
        """A node; `gate_of` makes its gate for its peer id."""
        settings = {"initial_peers": self.boot, "host_maddrs": (HOST,), "network": NETWORK} | settings
        file = self.identity_file()
        if gate_of is not None:
            settings["gate"] = gate_of(load_identity(file).peer_id)
        transport = await HivemindTransport.start(TransportConfig(identity_file=file, **settings))
        self._stack.push_async_callback(transport.close)
        self.boot = self.boot or await transport.visible_maddrs()
        return transport

    async def stranger(self, *, joins: bool = True, **options: Any) -> Any:
        """A DHT node of hivemind without our rules."""
        from hivemind.dht.node import DHTNode

        from cosine_p2p.transport.full.dht_node import node_id_of
        from cosine_p2p.transport.full.library import P2P

        peers = list(self.boot)
        p2p = await P2P.create(
            initial_peers=peers, host_maddrs=[HOST], auto_nat=False, nat_port_map=False, **options
        )
        self._stack.push_async_callback(p2p.shutdown)
        return await DHTNode.create(
            p2p=p2p, node_id=node_id_of(p2p.peer_id), initial_peers=peers if joins else None
        )

    async def owner(self) -> tuple[Identity, Any]:
        """A stranger with a known key, which can bring its own records."""
        file = self.identity_file()
        node = await self.stranger(identity_path=str(file), check_if_identity_free=False)
        return load_identity(file), node


@contextlib.asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            yield Swarm(Path(folder), stack)


@in_real_time
async def _among_nodes(play: Callable[[Swarm], Awaitable[None]]) -> None:
    async with swarm() as made:
        await play(made)


in_swarm: Final = as_test(_among_nodes, given=1)


def directory_of(transport: HivemindTransport) -> tuple[Identity, DhtDirectory]:
    identity = load_identity(transport.config.identity_file)
    network, membership = transport.config.network, transport.config.gate.membership
    directory = DhtDirectory(transport, identity, network=network, opener=transport.opener, membership=membership)
    return identity, directory


def pid_of(transport: HivemindTransport) -> int:
    assert transport._running is not None
    return int(transport._running.daemon.p2p._child.pid)


def dht_of(transport: HivemindTransport) -> Any:
    assert transport._running is not None
    return transport._running.dht


async def plant(stranger: Any, honest: HivemindTransport, **value: Any) -> bool | None:
    """True if an honest node stores this when asked directly; None where it does not answer."""
    from cosine_p2p.transport.full.library import DHTID, MSGPackSerializer, PeerID

    what = value["content"]
    packed = MSGPackSerializer.dumps(list(what) if isinstance(what, tuple) else what)
    answers = await stranger.protocol.call_store(
        PeerID.from_base58(honest.peer_id),
        keys=[DHTID.generate(source=value.get("cell", ROOT))],
        values=[packed],
        expiration_time=[value["expires_at_s"]],
        subkeys=[value.get("subkey")],
        in_cache=value.get("in_cache", False),
    )
    return None if answers is None else bool(answers[0])
