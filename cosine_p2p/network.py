"""Joining a network as a client, with a DHT node or light, by default under a new identity."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from cosine_p2p.access import Access
from cosine_p2p.client_memory import ClientMemory, SwarmMemory
from cosine_p2p.dht.cells import DhtDirectory, FindMemory
from cosine_p2p.dht.postings import PostingChecker, RecordOpener
from cosine_p2p.directory.known_peers import MAX_ADDRESSES, KnownPeer, order_peers
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.request.arguments import read_argument, texts
from cosine_p2p.storage.identity_file import load_identity, share_identity
from cosine_p2p.text.target import choose_digest
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_loads import TokenizerLoads
from cosine_p2p.transport.addresses import parse_initial_peers
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.config import TransportConfig, check_peer_addresses
from cosine_p2p.transport.lan import find_neighbours
from cosine_p2p.transport.patience import Note, ask_patiently, join_patience_s
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role

LOG = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 4.0  # A client waits less for a peer than a node does.
TRANSPORT_VARIABLE = "COSINE_TRANSPORT"  # The name of an environment variable.


class TransportKind(StrEnum):
    """`FULL` participates in the DHT (hivemind); `LIGHT` asks nodes (py-libp2p)."""

    FULL = "full"
    LIGHT = "light"


@dataclass(slots=True, eq=False)
class NetworkSwarm:
    """Implements `cosine_p2p.client.Swarm` on the real network."""

    transport: Transport
    directory: DhtDirectory
    leaving: AsyncExitStack
    tokenizers: TokenizerLoads
    mandates: Mandates

    @classmethod
    async def join(
        cls,
        initial_peers: Sequence[str],
        *,
        access: Access,
        kind: TransportKind,
        tokenizer_folder: Path | None,
        memory: SwarmMemory,
        listens: bool = False,
    ) -> "NetworkSwarm":
        """Raises `UsageError` for bad addresses or a key that is not a member's, `PeerLost` if no peer answers."""
        async with AsyncExitStack() as stack:
            file = None
            if access.identity_file is not None or access.swarm_file is not None:
                shared = share_identity(access.identity_file)
                stack.callback(shared.release)
                file = shared.file
            tokenizers = TokenizerLoads(tokenizer_folder)
            stack.push_async_callback(tokenizers.close)
            peers = tuple(initial_peers)
            if kind is TransportKind.FULL:
                entered = await _enter_full(peers, access, file, stack, listens=listens)
            else:
                entered = await _enter_light(peers, access, file, stack, tokenizers, memory)
            transport, directory, identity = entered
            return cls(transport, directory, stack.pop_all(), tokenizers, Mandates(identity, time.time))

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        return await self.tokenizers.of(verifiers, self.transport)

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        """Trust on first use: the digest of a name is pinned on this machine."""
        return choose_digest(name, offered)

    async def close(self) -> None:
        await self.leaving.aclose()


async def _enter_full(
    initial_peers: tuple[str, ...],
    access: Access,
    identity_file: Path | None,
    stack: AsyncExitStack,
    *,
    listens: bool,
) -> tuple[Transport, DhtDirectory, Identity]:
    """Join as a peer of the DHT that stores nothing for others; with `listens` it punches holes."""
    from cosine_p2p.transport.full.hivemind import HivemindTransport

    if identity_file is None:
        # A `TemporaryDirectory` would be removed by every forked child at its exit.
        folder = tempfile.mkdtemp(prefix="cosine-client-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        identity_file = Path(folder) / "identity"
    identity = load_identity(identity_file)
    gate = access.gate(identity.peer_id)
    config = TransportConfig(
        identity_file=identity_file,
        gate=gate,
        network=access.network,
        initial_peers=initial_peers,
        client_mode=True,
        listens=listens,
        dial_timeout_s=DIAL_TIMEOUT_S,
    )
    transport = await HivemindTransport.start(config)
    stack.push_async_callback(transport.close)
    directory = DhtDirectory(
        transport,
        identity,
        network=access.network,
        opener=transport.opener,
        membership=gate.membership,
        note_addresses=transport.note_addresses,
    )
    return transport, directory, identity


async def _enter_light(
    initial_peers: tuple[str, ...],
    access: Access,
    identity_file: Path | None,
    stack: AsyncExitStack,
    tokenizers: TokenizerLoads,
    memory: SwarmMemory,
) -> tuple[Transport, DhtDirectory, Identity]:
    """Join without the DHT; nodes in `memory` are dialled with the initial peers."""
    from cosine_p2p.directory.discover import DiscoverCells
    from cosine_p2p.transport.light.light import LightConfig, LightTransport

    identity = load_identity(identity_file) if identity_file is not None else Identity.generate()
    gate = access.gate(identity.peer_id)
    opener = RecordOpener()
    recalled = memory.records(PostingChecker(access.network, opener, gate.membership))
    for record in recalled.get(Role.VERIFIER, ()):
        tokenizers.begin(record.tokenizer_digest)
    config = LightConfig(
        identity=identity,
        initial_peers=initial_peers,
        joined_by=order_peers(initial_peers, memory.peers(), now_s=time.time()),
        dialled_soon={record.peer_id: record.addresses for record in chain.from_iterable(recalled.values())},
        dial_timeout_s=DIAL_TIMEOUT_S,
        gate=gate,
    )
    try:
        transport = await LightTransport.start(config)
    except PeerLost as lost:
        raise PeerLost(", ".join(initial_peers), lost.reason) from None
    stack.push_async_callback(transport.close)

    def note_record(record: NodeRecord) -> None:
        transport.note_addresses(record.peer_id, record.addresses)
        if record.role == Role.VERIFIER:
            # Loaded while other nodes are still asked.
            tokenizers.begin(record.tokenizer_digest, transport=transport, peer_id=record.peer_id)

    cells = DiscoverCells(transport, transport.initial_peers, opener=opener, note_record=note_record)
    stack.push_async_callback(cells.close)

    def remember() -> None:
        asked = [
            KnownPeer(maddrs=maddrs[:MAX_ADDRESSES], has_answered=has_answered, asked_at_s=time.time())
            for peer_id, has_answered in cells.asked.items()
            if (maddrs := transport.maddrs_of(peer_id))
        ]
        memory.write(asked, transport.met)

    stack.callback(remember)
    directory = DhtDirectory(
        cells,
        identity,
        network=access.network,
        opener=opener,
        membership=gate.membership,
        memory=FindMemory({(role, memory.target): found for role, found in recalled.items()}, memory.note_found),
    )
    return transport, directory, identity


def choose_transport(asked: str | None) -> TransportKind:
    """Choose `asked`, else `COSINE_TRANSPORT`, else full if it is installed. Raises `UsageError`."""
    has_full, has_light = find_spec("hivemind") is not None, find_spec("libp2p") is not None
    name = asked or os.environ.get(TRANSPORT_VARIABLE) or (TransportKind.FULL if has_full else TransportKind.LIGHT)
    if name not in set(TransportKind):
        raise UsageError(f"There is no transport {name!r}; choose full or light.")
    if name == TransportKind.FULL and not has_full:
        raise UsageError(
            "The full transport is not installed: `pip install . './node[torch]'` in the clone, or choose light."
        )
    if name == TransportKind.LIGHT and not has_light:
        raise UsageError(
            "The light transport is not installed: `pip install '.[light]'` in the clone, which on Linux takes a C "
            "compiler and the GMP headers (libgmp-dev); `pip install . './node[torch]'` has the full one."
        )
    return TransportKind(name)


def joining(
    initial_peers: Sequence[str],
    *,
    access: Access,
    tokenizer_folder: Path | None = None,
    transport: str | None = None,
    memory: ClientMemory | None = None,
    target: str = ALL_TARGETS,
    listens: bool = False,
    patience_s: float | None = None,
    note: Note = LOG.warning,
) -> Callable[[], Awaitable[NetworkSwarm]]:
    """The function by which a client joins; a light client first dials the nodes of `target` in `memory`.

    `initial_peers` are addresses or invitations; without any, nodes are looked for in the local network. With
    `listens` a full client reaches nodes behind routers directly. While no peer answers it retries for `patience_s`
    (default: `join_patience_s`) and reports that to `note`. Raises `UsageError`.
    """
    peers = read_argument("initial_peers", initial_peers, texts("addresses"))
    if not peers and not access.uses_lan:
        raise UsageError(
            "No initial peers: give the address of at least one node of the network, as initial_peers or with "
            "--initial-peers (nodes print theirs when they are ready)."
        )
    peers, access = follow_invitations(peers, access)
    kind = choose_transport(transport)
    if kind is TransportKind.FULL:
        check_peer_addresses(peers)
    else:
        parse_initial_peers(peers)

    # Each set of initial peers, which identifies a swarm, has a separate memory.
    swarm = " ".join((access.network, *sorted(peers)))
    swarm_memory = (memory or ClientMemory()).of_swarm(swarm, target=target)

    async def join() -> NetworkSwarm:
        found = peers or await find_neighbours(access.network)
        if not found:
            said = f"no node of the network {access.network!r} is found; give the address of one as an initial peer"
            raise PeerLost("the local network", said)
        return await NetworkSwarm.join(
            found,
            access=access,
            kind=kind,
            tokenizer_folder=tokenizer_folder,
            memory=swarm_memory,
            listens=listens,
        )

    patience_s = join_patience_s() if patience_s is None else patience_s
    return partial(ask_patiently, join, patience_s=patience_s, note=note)
