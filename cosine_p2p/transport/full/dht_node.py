"""hivemind's DHT node with our rules: only checked, signed records are stored, cached, or passed on.

Without them (read from hivemind's source, pinned by tests) a cache may shadow a full cell with one record, a
replayed old record shorten the life of a newer one, one bad record make a reader drop a whole cell, and one node
that claims a late expiry end a search. A node also chooses its own id, so that one peer can occupy all places near
a key.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cosine_p2p.dht.postings import PostingChecker, RecordStore
from cosine_p2p.transport.config import peer_of
from cosine_p2p.transport.full.dht_gate import GatedHandlers, GatedStub
from cosine_p2p.transport.full.dht_service import DhtService
from cosine_p2p.transport.full.library import (
    DHTID,
    DHTLocalStorage,
    DHTNode,
    DictionaryDHTValue,
    P2PDaemonError,
    PeerID,
    ValueWithExpiration,
    dht_pb2,
)
from cosine_p2p.transport.patience import end_all
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import PeerLost

RPC_TIMEOUT_S: Final = 3.0  # hivemind's default.
CONTROL_TIMEOUT_S: Final = 1.0  # The daemon is on this machine, and other calls wait for it.
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


def place_by_peer_id(protocol: Any) -> None:
    """Accept nodes only under ids derived from their peer ids, and only the nearest `bucket_size` neighbours."""
    update, find = protocol.update_routing_table, protocol.call_find

    async def update_routing_table(node_id: Any, peer_id: Any, responded: bool = True) -> None:
        if node_id is None or node_id == node_id_of(peer_id):
            await update(node_id, peer_id, responded)

    async def call_find(peer: Any, keys: Collection[Any]) -> Any:
        found = await find(peer, keys)
        return found and {key: (value, nearest(key, told)) for key, (value, told) in found.items()}

    def nearest(key: Any, told: Mapping[Any, Any]) -> dict[Any, Any]:
        near = sorted(told, key=key.xor_distance)[: protocol.bucket_size]
        return {node_id: told[node_id] for node_id in near if node_id == node_id_of(told[node_id])}

    protocol.update_routing_table, protocol.call_find = update_routing_table, call_find


async def start_dht(
    p2p: Any,
    *,
    peers: Sequence[str],
    checker: PostingChecker,
    store: RecordStore,
    client_mode: bool,
    gate: PeerGate,
    is_silent: Callable[[str], bool],
) -> Any:
    """A DHT node behind `gate` that does not dial silent peers. Raises `PeerLost` if none of `peers` answers."""
    node = await DHTNode.create(
        p2p=p2p,
        node_id=node_id_of(p2p.peer_id),
        wait_timeout=RPC_TIMEOUT_S,
        # Its own handlers would answer before the rules below apply.
        client_mode=True,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        reuse_get_requests=False,
        # Otherwise a node that was silent for an hour is left out of look-ups for another.
        backoff_rate=1.0,
    )
    protocol = node.protocol
    place_by_peer_id(protocol)
    protocol.storage, protocol.cache = ShownStorage(store), ShownStorage(RecordStore())
    # The results of a look-up are checked together (`dht_cells`), not with each answer.
    protocol._validate_dictionary = lambda key, cell: len(cell.data) <= MAX_CELL_OWNERS
    get_stub = protocol.get_stub

    def stub_of(peer: Any) -> GatedStub:
        if is_silent(peer.to_base58()):
            raise PeerLost(peer.to_base58(), "nothing listens at its address any more")
        return GatedStub(get_stub(peer), peer, gate)

    protocol.get_stub = stub_of
    if not client_mode:
        protocol.client_mode, protocol.node_info = False, dht_pb2.NodeInfo(node_id=node.node_id.to_bytes())
        service = DhtService(
            protocol,
            checker=checker,
            store=store,
            addresses=partial(_addresses, p2p),
            hang_up=partial(_hang_up, p2p, gate),
        )
        await protocol.add_p2p_handlers(p2p, GatedHandlers(service, gate))
    if peers:
        await enter_dht(node, peers)
    return node


async def enter_dht(node: Any, peers: Sequence[str]) -> None:
    """Meet connected peers, by their addresses, and the neighbours in their DHT. Raises `PeerLost`."""
    if not await _greet(node, {PeerID.from_base58(peer_of(maddr)) for maddr in peers}):
        raise PeerLost(", ".join(peers), "no DHT node answers there; check that it belongs to this network")
    # A client that only reads meets its neighbours in the look-ups that follow.
    if not node.protocol.client_mode:
        with suppress(TimeoutError):
            async with asyncio.timeout(RPC_TIMEOUT_S):
                await node.find_nearest_nodes([node.node_id])


async def _addresses(p2p: Any) -> dict[str, str]:
    try:
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            peers = await p2p._client.list_peers()
    except (OSError, EOFError, TimeoutError, P2PDaemonError):
        return {}
    return {peer.peer_id.to_base58(): str(peer.addrs[0]) for peer in peers if peer.addrs}


async def _hang_up(p2p: Any, gate: PeerGate, peer_id: str) -> None:
    gate.note_disconnected(peer_id)
    with suppress(OSError, EOFError, TimeoutError, P2PDaemonError):
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            await p2p._client.disconnect(PeerID.from_base58(peer_id))


async def _greet(node: Any, peers: Collection[Any]) -> bool:
    """Ping peers to fill the routing table, without waiting for dead ones; True if one answered."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    pings = {asyncio.create_task(node.protocol.call_ping(peer, validate=True, strict=False)) for peer in peers}
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
