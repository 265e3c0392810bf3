"""The cells of the directory in hivemind's DHT, which are looked up along disjoint paths."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_p2p.dht.cells import Placement
from cosine_p2p.dht.disjoint_paths import DisjointPaths
from cosine_p2p.dht.postings import Posting, PostingChecker, RecordStore, StoredValue, dht_key, subkey_bytes
from cosine_p2p.transport.full.dht_node import BUCKET_SIZE, REPLICAS, DhtNode, node_id_of
from cosine_p2p.transport.full.library import DHTID, DictionaryDHTValue
from cosine_p2p.transport.patience import end_all
from cosine_protocol.discover import MAX_CELL_OWNERS, MAX_FIND_KEYS
from cosine_protocol.errors import LocalProtocolError, PeerLost, RemoteProtocolError
from cosine_protocol.fields import encode_body

logger = logging.getLogger(__name__)

ASKED_AT_ONCE: Final = 3  # Kademlia's alpha, on each path.
OPERATION_TIMEOUT_S: Final = 20.0  # Several rounds of Kademlia with nodes that do not answer.
MIN_PATIENCE_S: Final = 1.0  # After the first path has ended the others have twice its time, and this.
MAX_RECORDS_READ: Final = 4 * MAX_CELL_OWNERS
"""Bounds the signatures checked for one cell. Twenty lying nodes of forty fill 1,280 places: enough for 85 records
with as many copies as fifteen honest nodes hold of one."""
CHECKED_IN_A_ROW: Final = 16  # Before the event loop runs other work: 2 ms at 115 us each (measured).

_Weights = Counter[tuple[str, bytes, float]]
"""By owner, value and expiry: the sum of its places from the end of the cell, over all nodes that show it."""


@dataclass(slots=True)
class _Search:
    paths: DisjointPaths
    weights: _Weights = field(default_factory=Counter)


class DhtCells:
    """Implements `Cells` on a DHT node, with `REPLICAS` on each path (decision 31).

    `anchors` are the peer ids of the initial peers.
    """

    def __init__(
        self, node: DhtNode, *, checker: PostingChecker, store: RecordStore, anchors: Collection[Any]
    ) -> None:
        self._node = node
        self._checker = checker
        self._store = store
        self._anchors = {node_id_of(peer_id): peer_id for peer_id in anchors}
        self._holders: dict[str, list[Any]] = {}

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        """The signed records in each cell, by owner. Raises `PeerLost` if no node answers a client."""
        found, _ = await self._search(cells)
        if self._node.client_mode and not any(search.paths.answered for search in found.values()):
            raise PeerLost(self._node.p2p.peer_id.to_base58(), "no node of the network answered a look-up")
        now_s = time.time()
        for cell in cells:
            for place, own in enumerate(self._store.get(dht_key(cell), now_s)):
                found[cell].weights[own.owner, own.value, own.expires_at_s] += MAX_CELL_OWNERS - place
        return {cell: await self._checked(cell, found[cell].weights) for cell in cells}

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        """Store here and at the nearest nodes of each path; a renewal at the known holders, without a check."""
        value, now_s = encode_body(StoredValue(cell, data)), time.time()
        try:
            posting = self._checker.check(
                key=dht_key(cell), subkey=subkey_bytes(owner), value=value, expires_at_s=expires_at_s, now_s=now_s
            )
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"no node would store our record: {error}") from error
        if not self._node.client_mode:
            self._store.put(dht_key(cell), posting, now_s)
        holders = self._holders.get(cell, [])
        if is_renewal and holders:
            stored = await asyncio.gather(*(self._store_at(peer_id, cell, posting) for peer_id in holders))
            return Placement(holders=sum(stored), asked=len(holders))
        found, peer_ids = await self._search([cell])
        paths = found[cell].paths
        if not paths.answered and self._anchors:
            raise PeerLost(owner, "no other node of the network answers")
        replicas = [peer_ids[node] for path in paths.paths for node in paths.nearest(path)[:REPLICAS]]
        holding = await asyncio.gather(*(self._is_held_by(peer_id, cell, posting) for peer_id in replicas))
        self._holders[cell] = [peer_id for peer_id, holds in zip(replicas, holding, strict=True) if holds]
        return Placement(holders=sum(holding), asked=len(replicas))

    def begin_again(self) -> None:
        """Forget holders and silent nodes after a change of network."""
        self._holders.clear()
        self._node.forget_silence()

    async def _is_held_by(self, peer_id: Any, cell: str, posting: Posting) -> bool:
        if not await self._store_at(peer_id, cell, posting):
            return False
        key = _key_of(cell)
        shown = await self._node.call_find(peer_id, [key])
        return bool(shown) and (posting.owner, posting.value) in {
            (owner, value) for owner, value, _ in _items_of(shown[key][0])
        }

    async def _store_at(self, peer_id: Any, cell: str, posting: Posting) -> bool:
        stored = await self._node.call_store(
            peer_id,
            keys=[_key_of(cell)],
            values=[posting.value],
            expiration_time=[posting.expires_at_s],
            subkeys=[posting.owner],
        )
        return bool(stored) and all(stored)

    async def _search(self, cells: Sequence[str]) -> tuple[dict[str, _Search], dict[int, Any]]:
        """The look-ups of some cells that ended in time, and the peer ids of all nodes that answers named."""
        table, node_id = self._node.routing_table, self._node.node_id
        peer_ids: dict[int, Any] = dict(self._anchors)
        asking = _BatchedFinds(self._node, peer_ids)
        found = {}
        for cell in cells:
            key = _key_of(cell)
            near = dict(table.get_nearest_neighbors(key, BUCKET_SIZE, exclude=node_id))
            peer_ids |= near
            found[cell] = _Search(
                DisjointPaths(int(key), starts=near, anchors=list(self._anchors), excluded=[node_id])
            )
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                await asyncio.gather(*(_follow_paths(_key_of(cell), found[cell], asking) for cell in found))
        except TimeoutError:
            logger.debug("a look-up was ended before all its nodes had answered")
        finally:
            await asking.close()
        return found, peer_ids

    async def _checked(self, cell: str, weights: _Weights) -> dict[str, bytes]:
        """The newest valid record of each owner. Records that many nodes show are checked first."""
        key, now_s = dht_key(cell), time.time()
        held: dict[str, Posting] = {}
        for number, ((owner, value, expires_at_s), _) in enumerate(weights.most_common(MAX_RECORDS_READ), 1):
            if number % CHECKED_IN_A_ROW == 0:
                await asyncio.sleep(0)
            try:
                posting = self._checker.check(
                    key=key, subkey=subkey_bytes(owner), value=value, expires_at_s=expires_at_s, now_s=now_s
                )
            except RemoteProtocolError:
                continue
            if owner not in held or posting.record.sequence > held[owner].record.sequence:
                held[owner] = posting
        return {owner: posting.data for owner, posting in held.items() if posting.expires_at_s >= now_s}


class _BatchedFinds:
    """Asks a node in one call for all keys of one iteration of the event loop. End it with `close`."""

    def __init__(self, node: DhtNode, peer_ids: dict[int, Any]) -> None:
        self._node = node
        self._peer_ids = peer_ids
        self._open: dict[int, tuple[list[Any], asyncio.Task[Any]]] = {}
        self._calls: set[asyncio.Task[Any]] = set()

    async def ask(self, node_id: int, key: Any) -> tuple[Any, Mapping[int, Any]] | None:
        """Return a node's value of a key and its neighbours; None if it is silent."""
        if node_id not in self._open:
            keys: list[Any] = []
            self._open[node_id] = keys, asyncio.create_task(self._call(node_id, keys))
        keys, call = self._open[node_id]
        self._calls.add(call)
        keys.append(key)
        if len(keys) == MAX_FIND_KEYS:
            del self._open[node_id]
        answer = await asyncio.shield(call)
        if not answer or key not in answer:
            return None
        shown, told = answer[key]
        self._peer_ids.update(told)
        return shown, told

    async def close(self) -> None:
        await end_all(self._calls)

    async def _call(self, node_id: int, keys: list[Any]) -> Any:
        if node_id in self._open and self._open[node_id][0] is keys:
            del self._open[node_id]
        return await self._node.find_at(self._peer_ids[node_id], keys)


async def _follow_paths(key: Any, search: _Search, asking: _BatchedFinds) -> None:
    """Follow all paths of a look-up, except those that take much longer than the first."""
    loop = asyncio.get_running_loop()
    began_s, until_s = loop.time(), math.inf
    waiting: dict[asyncio.Task[None], int] = {}
    try:
        while True:
            for path in search.paths.paths:
                for _ in range(ASKED_AT_ONCE - list(waiting.values()).count(path)):
                    if (node_id := search.paths.next_node(path)) is not None:
                        waiting[asyncio.create_task(_ask_node(node_id, key, search, asking))] = path
            if not waiting:
                return
            if until_s == math.inf and set(search.paths.answered.values()) - set(waiting.values()):
                until_s = loop.time() + MIN_PATIENCE_S + 2 * (loop.time() - began_s)
            patience_s = None if until_s == math.inf else max(0.0, until_s - loop.time())
            done, _ = await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for task in done:
                del waiting[task]
    finally:
        await end_all(waiting)


async def _ask_node(node_id: int, key: Any, search: _Search, asking: _BatchedFinds) -> None:
    answer = await asking.ask(node_id, key)
    if answer is None:
        search.paths.note_silence(node_id)
        return
    shown, told = answer
    for place, item in enumerate(_items_of(shown)):
        search.weights[item] += MAX_CELL_OWNERS - place
    search.paths.note_answer(node_id, told)


def _key_of(cell: str) -> Any:
    return DHTID.from_bytes(dht_key(cell))


def _items_of(shown: Any) -> list[tuple[str, bytes, float]]:
    """The unchecked owners, values and expiries of a value in the DHT; empty if it is not a cell."""
    if shown is None or not isinstance(shown.value, DictionaryDHTValue):
        return []
    items = [
        (owner, item.value, item.expiration_time)
        for owner, item in shown.value.items()
        if isinstance(owner, str) and isinstance(item.value, bytes) and isinstance(item.expiration_time, float)
    ]
    return items if len(items) <= MAX_CELL_OWNERS else []
