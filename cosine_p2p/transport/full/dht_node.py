"""A DHT node: hivemind's protocol by our rules. Only checked, signed records are stored or passed on.

Without them (read from hivemind's source, pinned by tests) a replayed old record may shorten the life of a newer
one, and one bad record make a reader drop a whole cell. A node also chooses its own id, so that one peer can occupy
all places near a key.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cosine_p2p.dht.postings import PostingChecker, RecordStore
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS
from cosine_p2p.transport.config import peer_of
from cosine_p2p.transport.full.daemon import Daemon
from cosine_p2p.transport.full.dht_gate import GatedHandlers, GatedStub
from cosine_p2p.transport.full.dht_service import DhtService
from cosine_p2p.transport.full.library import (
    DHTID,
    DHTLocalStorage,
    DHTProtocol,
    DictionaryDHTValue,
    PeerID,
    ValueWithExpiration,
    dht_pb2,
    traverse_dht,
)
from cosine_p2p.transport.patience import end_all
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import PeerLost

# hivemind's defaults.
BUCKET_SIZE: Final = 20
DEPTH_MODULO: Final = 5
REPLICAS: Final = 5
WORKERS: Final = 4
RPC_TIMEOUT_S: Final = 3.0
SILENT_S: Final = 5.0  # How long a node that did not answer is left out of look-ups.
MIN_PATIENCE_S: Final = 0.5  # After the first answer to a ping the others have twice its time, and this.


class ShownStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind has no types
    """A `RecordStore` as read-only storage of hivemind, oldest owner first, which lists no items."""

    def __init__(self, store: RecordStore) -> None:
        super().__init__()
        self._store = store

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        return False

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        return False

    def get(self, key: Any) -> Any:
        postings = self._store.get(key.to_bytes(), time.time())
        if not postings:
            return None
        dictionary = DictionaryDHTValue()
        for posting in postings:
            dictionary.store(posting.owner, posting.value, posting.expires_at_s)
        return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(())


def node_id_of(peer_id: Any) -> Any:
    """The DHT id of a peer, derived from its key, so that no peer can be in two places."""
    return DHTID.generate(source=peer_id.to_base58())


class DhtNode(DHTProtocol):  # type: ignore[misc]  # hivemind has no types
    """hivemind's three calls and routing table, behind a peer gate. Created by `start`.

    Nodes are accepted only under ids derived from their peer ids.
    """

    @classmethod
    async def start(
        cls,
        daemon: Daemon,
        *,
        checker: PostingChecker,
        store: RecordStore,
        client_mode: bool,
        gate: PeerGate,
        is_silent: Callable[[str], bool],
    ) -> "DhtNode":
        """A node that does not dial silent peers, and in client mode answers no calls."""
        # hivemind's own handlers would answer without the rules of the service.
        p2p = daemon.p2p
        node = await cls.create(
            p2p, node_id_of(p2p.peer_id), BUCKET_SIZE, DEPTH_MODULO, REPLICAS, RPC_TIMEOUT_S, client_mode=True
        )
        node.storage = ShownStorage(store)
        node._gate, node._is_silent = gate, is_silent
        node.forget_silence()
        if not client_mode:
            node.client_mode, node.node_info = False, dht_pb2.NodeInfo(node_id=node.node_id.to_bytes())
            service = DhtService(
                node,
                checker=checker,
                store=store,
                addresses=partial(_addresses, daemon),
                hang_up=partial(_hang_up, daemon, gate),
            )
            await node.add_p2p_handlers(p2p, GatedHandlers(service, gate))
        return node  # type: ignore[no-any-return]

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        # The names of calls contain the class's.
        return str(DHTProtocol._get_handle_name(namespace, method_name))

    def get_stub(self, peer: Any) -> GatedStub:
        if self._is_silent(peer.to_base58()):
            raise PeerLost(peer.to_base58(), "nothing listens at its address any more")
        return GatedStub(super().get_stub(peer), peer, self._gate)

    async def update_routing_table(self, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        if node_id is None or node_id == node_id_of(peer_id):
            await super().update_routing_table(node_id, peer_id, responded)

    async def call_find(self, peer: Any, keys: Collection[Any]) -> Any:
        """By key the value of a node and its nearest `BUCKET_SIZE` neighbours; None if it does not answer."""
        found = await super().call_find(peer, keys)
        return found and {key: (value, _nearest(key, told)) for key, (value, told) in found.items()}

    def _validate_dictionary(self, key: bytes, cell: Any) -> bool:
        # The results of a look-up are checked together (`dht_cells`), not with each answer.
        return len(cell.data) <= MAX_CELL_OWNERS

    async def find_at(self, peer: Any, keys: Collection[Any]) -> Mapping[Any, tuple[Any, Mapping[Any, Any]]]:
        """Like `call_find`, without nodes that did not answer within `SILENT_S`; empty for one of them."""
        loop = asyncio.get_running_loop()
        if self._unanswered.get(peer, loop.time()):
            return {}
        found = await self.call_find(peer, keys)
        if not found:
            self._unanswered.note(peer, True, loop.time())
            return {}
        self._unanswered.pop(peer)
        silent = {peer for peer, _ in self._unanswered.items(loop.time())}
        return {
            key: (value, {node_id: told[node_id] for node_id in told if told[node_id] not in silent})
            for key, (value, told) in found.items()
        }

    def forget_silence(self) -> None:
        self._unanswered = Remembered[Any, bool](MAX_KNOWN_PEERS, forgotten_s=SILENT_S)

    async def enter(self, peers: Sequence[str]) -> None:
        """Meet connected peers, by their addresses, and the neighbours in their DHT. Raises `PeerLost`."""
        if not await self._greet({PeerID.from_base58(peer_of(maddr)) for maddr in peers}):
            raise PeerLost(", ".join(peers), "no DHT node answers there; check that it belongs to this network")
        # A client that only reads meets its neighbours in the look-ups that follow.
        if not self.client_mode:
            with suppress(TimeoutError):
                async with asyncio.timeout(RPC_TIMEOUT_S):
                    await self._meet_neighbours()

    async def _greet(self, peers: Collection[Any]) -> bool:
        """Ping peers to fill the routing table, without waiting for dead ones; True if one answered."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        pings = {asyncio.create_task(self.call_ping(peer, validate=True, strict=False)) for peer in peers}
        waiting, is_met, patience_s = pings, False, RPC_TIMEOUT_S
        try:
            while waiting and loop.time() < began_s + patience_s:
                done, waiting = await asyncio.wait(
                    waiting, timeout=began_s + patience_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                if not is_met and any(ping.result() is not None for ping in done):
                    is_met = True
                    patience_s = min(RPC_TIMEOUT_S, MIN_PATIENCE_S + 2 * (loop.time() - began_s))
        finally:
            await end_all(pings)
        return is_met

    async def _meet_neighbours(self) -> None:
        """Look up this node's own id: the nodes that are asked take this one into their routing tables."""
        own = self.node_id
        peer_ids = dict(self.routing_table.get_nearest_neighbors(own, BUCKET_SIZE, exclude=own))

        async def ask(node_id: Any, keys: Collection[Any]) -> Mapping[Any, tuple[tuple[Any, ...], bool]]:
            found = await self.find_at(peer_ids[node_id], keys)
            for _, told in found.values():
                peer_ids.update(told)
            return {key: (tuple(found[key][1]) if key in found else (), False) for key in keys}

        await traverse_dht(
            [own],
            initial_nodes=list(peer_ids),
            beam_size=BUCKET_SIZE,
            num_workers=WORKERS,
            queries_per_call=1,
            get_neighbors=ask,
            visited_nodes={own: {own}},
        )


def _nearest(key: Any, told: Mapping[Any, Any]) -> dict[Any, Any]:
    near = sorted(told, key=key.xor_distance)[:BUCKET_SIZE]
    return {node_id: told[node_id] for node_id in near if node_id == node_id_of(told[node_id])}


async def _addresses(daemon: Daemon) -> dict[str, str]:
    try:
        ways = await daemon.ways()
    except PeerLost:
        return {}
    return {peer_id: maddrs[0] for peer_id, maddrs in ways.items() if maddrs}


async def _hang_up(daemon: Daemon, gate: PeerGate, peer_id: str) -> None:
    gate.note_disconnected(peer_id)
    await daemon.disconnect(peer_id)
