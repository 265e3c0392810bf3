"""A node's entry into its network: it claims an identity at once, and joins when its model is available."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cosine_node.serving.local_network import LocalNetwork
from cosine_node.serving.options import NetworkOptions
from cosine_node.serving.surroundings import Surroundings
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.storage.identity_file import ClaimedIdentity, claim_identity
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.patience import ask_patiently, join_patience_s, unless_stopped
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.transport.reach import Reachable, best_first
from cosine_protocol.identity import Identity
from cosine_terminal.events import Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNetwork:
    """A network that a node has joined, with the node's transport and identity in it."""

    options: NetworkOptions
    transport: HivemindTransport
    identity: Identity
    directory: DhtDirectory
    surroundings: Surroundings
    local: LocalNetwork | None = None

    async def read_cell(self, cell: str) -> Sequence[bytes]:
        """Return the records in one cell of the DHT."""
        return list((await self.transport.read([cell])).get(cell, {}).values())

    def held_in(self, cell: str) -> Sequence[bytes]:
        """Return the records in one cell that this node stores itself."""
        return self.transport.held_in(cell)

    def be_found(self) -> None:
        """Advertise the node in the local network from now on."""
        if self.local is not None:
            self.local.be_found()

    async def ready_fields(self, role: str) -> dict[str, object]:
        """Return the fields of the `ready` event; the first address is the best one for others."""
        reach = self.transport.reach
        maddrs = best_first((*reach.addresses, *await self.transport.visible_maddrs()), local=local_hosts(()))
        return {"peer_id": self.transport.peer_id, "role": role, "maddrs": maddrs, **reach_fields(reach)}


def reach_fields(reach: Reachable) -> dict[str, object]:
    """Return the fields of an event for the reachability of a node."""
    return {"reach": reach.kind, "relays": list(reach.relays), "said": f"{str(reach)[:1].upper()}{str(reach)[1:]}."}


@asynccontextmanager
async def entering(
    network: NetworkOptions,
    emit: Emit,
    stop: asyncio.Event,
    *,
    identity_file: Path | None = None,
    is_relay: bool = False,
) -> AsyncIterator["Entrance"]:
    """Claim an identity for a node; at the end, leave the network and release the identity. Raises `UsageError`.

    `identity_file` is by default that of the network's options.
    """
    async with AsyncExitStack() as stack:
        claimed = claim_identity(identity_file or network.identity_file)
        stack.callback(claimed.release)
        gate = network.access.gate(claimed.identity.peer_id)
        yield Entrance(network, claimed, gate, emit, stop, stack, is_relay)


@dataclass(slots=True, eq=False)
class Entrance:
    """One node's entry into a network. Created by `entering`."""

    network: NetworkOptions
    claimed: ClaimedIdentity
    gate: PeerGate
    emit: Emit
    stop: asyncio.Event
    stack: AsyncExitStack
    is_relay: bool = False
    joined: JoinedNetwork | None = None

    async def join(self, peers: Sequence[str] = ()) -> JoinedNetwork | None:
        """Join the network, by `peers` if no others are named; return None if the node is stopped before that.

        A network that is joined already is returned. Raises `UsageError`, and `PeerLost` if no peer answers.
        """
        if self.joined is not None:
            return self.joined
        network, access = self.network, self.network.access
        network = replace(network, initial_peers=network.initial_peers or tuple(peers))
        self.emit("joining", {"network": access.network, "initial_peers": list(network.initial_peers)})
        config = network.transport_config(self.claimed.file, self.gate, is_relay=self.is_relay)
        start = ask_patiently(partial(HivemindTransport.start, config), patience_s=join_patience_s())
        transport = await unless_stopped(start, self.stop)
        if transport is None:
            return None
        self.stack.push_async_callback(transport.close)
        local = None
        if access.uses_lan:
            local = LocalNetwork(transport, self.emit, looks=not network.initial_peers)
            self.stack.push_async_callback(local.close)
            await unless_stopped(local.first(), self.stop)
        directory = DhtDirectory(
            transport,
            self.claimed.identity,
            network=access.network,
            opener=transport.opener,
            membership=transport.config.gate.membership,
            note_addresses=transport.note_addresses,
        )
        self.joined = JoinedNetwork(
            options=network,
            transport=transport,
            identity=self.claimed.identity,
            directory=directory,
            surroundings=Surroundings(transport, directory, Vivaldi(random.random), rng=random.Random()),
            local=local,
        )
        return self.joined
