"""hivemind's calls by our rules and on a budget: a node stores only the records that their owners bring."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cosine_p2p.dht.peer_clocks import PeerClocks
from cosine_p2p.dht.postings import PostingChecker, RecordStore, subkey_bytes
from cosine_p2p.transport.addresses import range_of
from cosine_p2p.transport.full.library import dht_pb2
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.discover import MAX_FIND_KEYS
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.records import NodeRecord

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 0.2  # The minimum interval between requests for addresses; a new peer waits this long.
BAD_VALUE_UNITS: Final = 25.0  # The fine for a value that fails its check; honest owners store none.
BROUGHT_WITHIN_S: Final = 20.0  # The maximum age of a new record: the time of the look-up before it is stored.


class OverBudget(Exception):
    """A refused call; the caller gets only the text."""


class DhtService:
    """hivemind's three calls. `addresses` are those of connected peers; `hang_up` disconnects a flooding peer."""

    def __init__(
        self,
        protocol: Any,
        *,
        checker: PostingChecker,
        store: RecordStore,
        addresses: Callable[[], Awaitable[Mapping[str, str]]],
        hang_up: Callable[[str], Awaitable[None]],
    ) -> None:
        self._protocol = protocol
        self._checker = checker
        self._store = store
        self._addresses = addresses
        self._hang_up = hang_up
        self._budget = CallBudget()
        self._clocks = PeerClocks()
        self._ranges: dict[str, str] = {}
        self._look_again_s = 0.0
        self._looking: asyncio.Future[None] | None = None
        self._hanging_up: dict[str, asyncio.Task[None]] = {}

    async def rpc_ping(self, request: Any, context: Any) -> Any:
        await self._spend(context, 1)
        return await self._protocol.rpc_ping(request, context)

    async def rpc_find(self, request: Any, context: Any) -> Any:
        await self._spend(context, len(request.keys))
        return await self._protocol.rpc_find(request, context)

    async def rpc_store(self, request: Any, context: Any) -> Any:
        """Store the sender's own valid records. Raises `OverBudget` for too many."""
        address_range = await self._spend(context, len(request.keys))
        fields = (request.keys, request.subkeys, request.values, request.expiration_time, request.in_cache)
        items = list(zip(*fields, strict=False))
        owner = context.remote_id.to_base58()
        if request.peer and request.peer.node_id:
            await self._protocol.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context)
        response = dht_pb2.StoreResponse(store_ok=[], peer=self._protocol.node_info)
        for item in items:
            response.store_ok.append(self._keeps(owner, address_range, *item))
        return response

    def _keeps(
        self,
        owner: str,
        address_range: str,
        key: bytes,
        subkey: bytes,
        value: bytes,
        until_s: float,
        in_cache: bool,
    ) -> bool:
        now_s = time.time()

        def note(record: NodeRecord) -> None:
            """Compare clocks with the owner of a record, who has just issued it."""
            source = address_range or owner
            self._clocks.note(source, issued_s=record.issued_at_s, oldest_s=BROUGHT_WITHIN_S, now_s=now_s)
            if news := self._clocks.news(now_s):
                logger.warning("%s", news)

        try:
            if in_cache or subkey != subkey_bytes(owner):
                raise RemoteProtocolError("it is not the sender's own, or for a cache")
            posting = self._checker.check(
                key=key, subkey=subkey, value=value, expires_at_s=until_s, now_s=now_s, note=note
            )
        except RemoteProtocolError as error:
            logger.debug("a record that %s brought was refused: %s", owner, error)
            self._budget.owe(owner, BAD_VALUE_UNITS, now_s=_now_s())
            return False
        return self._store.put(key, posting, now_s, source=address_range)

    async def _spend(self, context: Any, keys: int) -> str:
        """The address range of a caller within its budget, which a refused call costs too. Raises `OverBudget`."""
        peer_id, now_s = context.remote_id.to_base58(), _now_s()
        units = max(1, min(keys, MAX_FIND_KEYS))
        if not self._budget.is_silenced(peer_id, now_s=now_s):
            address_range = await self._range_of(peer_id)
            if self._budget.spend(peer_id, units, address_range=address_range, now_s=now_s):
                if keys > MAX_FIND_KEYS:
                    raise OverBudget(f"a call has at most {MAX_FIND_KEYS} keys")
                return address_range
        if self._budget.is_silenced(peer_id, now_s=now_s) and peer_id not in self._hanging_up:
            task = self._hanging_up[peer_id] = asyncio.ensure_future(self._hang_up(peer_id))
            task.add_done_callback(lambda _: self._hanging_up.pop(peer_id))
        raise OverBudget("too many calls; ask again later")

    async def _range_of(self, peer_id: str) -> str:
        if peer_id not in self._ranges:
            # A peer that connects during a request may be missing in its answer.
            if self._looking is not None:
                await asyncio.shield(self._looking)
            if self._looking is None and peer_id not in self._ranges:
                self._looking = asyncio.ensure_future(self._look())
                self._looking.add_done_callback(self._looked)
            if self._looking is not None:
                await asyncio.shield(self._looking)
        return self._ranges.setdefault(peer_id, "")

    async def _look(self) -> None:
        await asyncio.sleep(max(0.0, self._look_again_s - _now_s()))
        self._look_again_s = _now_s() + LOOK_AGAIN_S
        addresses = await self._addresses()
        known = self._ranges
        self._ranges = {peer: known.get(peer) or range_of(at) for peer, at in addresses.items()}

    def _looked(self, _: object) -> None:
        self._looking = None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
