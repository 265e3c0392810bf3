"""The DHT through other nodes: a client without a DHT node asks several nodes over `/cosine/discover/1.0.0`.

Records are signed, so an answer can omit but not change them. The newest record of each owner counts.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from typing import Final

from cosine_p2p.dht.cells import Placement
from cosine_p2p.dht.postings import RecordOpener
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import end_all
from cosine_protocol.discover import DISCOVER, AskRecords, Records
from cosine_protocol.errors import BadSignature, MalformedMessage, PeerError, PeerLost, UsageError
from cosine_protocol.fields import MAX_NAME_BYTES, decode_body
from cosine_protocol.identity import unseal
from cosine_protocol.records import NodeRecord

logger = logging.getLogger(__name__)

WANTED_ANSWERS: Final = 3  # A record is missed only if all three answers lack it.
MAX_ASKED: Final = 8  # Bounds one look-up.
MAX_DISCOVERED: Final = 256  # Bounds memory: nodes to ask if the initial peers do not answer.
ANSWER_TIMEOUT_S: Final = 10.0  # The node may have to search its DHT.
READ_TIMEOUT_S: Final = 20.0  # Two nodes that do not answer, one after the other.
MIN_PATIENCE_S: Final = 1.0  # After the first answer the others have its time again, and at least this.
KEEP_LINKS_S: Final = 15.0  # Longer than the pause between related look-ups.

Answer = Mapping[str, Sequence[bytes]]
NoteRecord = Callable[[NodeRecord], object]


class DiscoverCells:
    """`Cells` of `initial_peers`, then of nodes in records, which `note_record` gets. `asked` nodes answered."""

    def __init__(
        self,
        transport: Transport,
        initial_peers: Sequence[str],
        *,
        opener: RecordOpener,
        note_record: NoteRecord,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes = _AskedNodes(transport)
        self._peer_id = transport.peer_id
        self._initial_peers = tuple(initial_peers)
        self._opener = opener
        self._note_record = note_record
        self._clock = clock
        self._discovered: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self.asked: dict[str, bool] = {}

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        """Ask until enough nodes answer. Raises `PeerLost` with all reasons, `UsageError` for a long name."""
        if any(len(cell.encode()) > MAX_NAME_BYTES for cell in cells):
            raise UsageError("The target's name is too long to be looked up; name it by its digest in hex.")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + READ_TIMEOUT_S
        look_up = _LookUp(self._nodes, cells, self._opener, self._clock())
        with self._nodes.kept_open():
            while len(look_up.answered) < WANTED_ANSWERS and loop.time() < deadline_s:
                peers = self._next_peers(look_up)
                if not peers:
                    break
                for answer in await look_up.ask(peers, deadline_s):
                    look_up.add(answer)
                self._learn(look_up)
        if not look_up.answered:
            tried = "; ".join(f"{peer_id}: {reason}" for peer_id, reason in look_up.reasons.items())
            raise PeerLost("the directory", f"no node answered a look-up ({tried})")
        return {
            cell: {owner: data for (place, owner), (_, data) in look_up.newest.items() if place == cell}
            for cell in cells
        }

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        """A client announces nothing."""
        return Placement(holders=0, asked=1)

    async def close(self) -> None:
        await self._nodes.close()

    def _next_peers(self, look_up: "_LookUp") -> list[str]:
        """The nodes to ask next: those that failed before come last."""

        def rank(peer_id: str) -> bytes:
            # Hashed with our peer id, so that no node can put itself first.
            return sha256(f"{self._peer_id} {peer_id}".encode()).digest()

        known = dict.fromkeys((*self._initial_peers, *sorted(self._discovered, key=rank)))
        trusted = [peer_id for peer_id in known if peer_id not in self._failed]
        order = [peer_id for peer_id in (*trusted, *self._failed) if peer_id not in look_up.asked]
        room = min(WANTED_ANSWERS - len(look_up.answered), MAX_ASKED - len(look_up.asked))
        return order[: max(0, room)]

    def _learn(self, look_up: "_LookUp") -> None:
        self.asked |= dict.fromkeys(look_up.reasons, False) | dict.fromkeys(look_up.answered, True)
        for peer_id in (*look_up.answered, *look_up.reasons):
            self._failed.pop(peer_id, None)
        self._failed |= dict.fromkeys(look_up.reasons)
        new, look_up.new = look_up.new, []
        for record in new:
            self._note_record(record)
            if len(self._discovered) < MAX_DISCOVERED:
                self._discovered[record.peer_id] = None


class _LookUp:
    """A look-up. `newest`: the newest record of each cell and owner. `new`: records that are not reported yet."""

    def __init__(self, nodes: "_AskedNodes", cells: Sequence[str], opener: RecordOpener, now_s: float) -> None:
        self.asked: set[str] = set()
        self.answered: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.newest: dict[tuple[str, str], tuple[NodeRecord, bytes]] = {}
        self.new: list[NodeRecord] = []
        self._nodes = nodes
        self._cells = cells
        self._opener = opener
        self._now_s = now_s
        self._seen: set[tuple[str, bytes]] = set()
        self._patience_s: float | None = None

    def add(self, answer: Answer) -> None:
        """Add records; each is checked before the comparison, since a forged one could hide a true one."""
        for cell, data in ((cell, data) for cell, records in answer.items() for data in records):
            if (cell, data) in self._seen:
                continue
            self._seen.add((cell, data))
            try:
                owner = decode_body(NodeRecord, unseal(NodeRecord, data).body).peer_id
                record = self._opener.open(data, cell=cell, owner=owner, now_s=self._now_s)
            except (BadSignature, MalformedMessage) as error:
                logger.debug("a record in %s was dropped: %s", cell, error)
                continue
            held = self.newest.get((cell, owner))
            if held is None or record.sequence > held[0].sequence:
                self.newest[cell, owner] = record, data
                self.new.append(record)

    async def ask(self, peers: Sequence[str], deadline_s: float) -> list[Answer]:
        """Ask peers concurrently, and wait for all, but not much longer than for the first answer."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.asked.update(peers)
        until_s = deadline_s if self._patience_s is None else began_s + self._patience_s
        asking = {asyncio.ensure_future(self._nodes.ask(peer_id, self._cells)): peer_id for peer_id in peers}
        waiting, answers = set(asking), []
        try:
            while waiting and loop.time() < until_s:
                done, waiting = await asyncio.wait(
                    waiting, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    peer_id = asking[task]
                    try:
                        answers.append(task.result())
                        self.answered.add(peer_id)
                    except PeerLost as lost:
                        self.reasons[peer_id] = lost.reason
                if answers and self._patience_s is None:
                    self._patience_s = max(MIN_PATIENCE_S, loop.time() - began_s)
                    until_s = loop.time() + self._patience_s
        finally:
            self.reasons |= {asking[task]: "it was much slower than the others" for task in waiting}
            await end_all(asking)
        return answers


class _AskedNodes:
    """Asks nodes over links that are kept for a while, since look-ups come in bursts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._links = Links(transport)
        self._numbers = count(1)
        self._users = 0
        self._hanging_up: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        self._users += 1
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._hanging_up = asyncio.get_running_loop().call_later(KEEP_LINKS_S, self._hang_up)

    async def ask(self, peer_id: str, cells: Sequence[str]) -> Answer:
        """Ask a node for its records of each cell, which are unchecked. Raises `PeerLost`."""
        link = await self._links.get(peer_id, DISCOVER)
        questions = [AskRecords(next(self._numbers), cell) for cell in cells]
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answers = await asyncio.gather(*map(link.ask, questions))
        except TimeoutError:
            raise PeerLost(peer_id, f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        except PeerError as refused:
            raise PeerLost(peer_id, f"it refused: {refused.message}") from None
        records = {}
        for cell, answer in zip(cells, answers, strict=True):
            if not isinstance(answer, Records):
                raise PeerLost(peer_id, "it did not answer what was asked")
            records[cell] = answer.records
        return records

    async def close(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        await self._links.close()
        await asyncio.gather(*self._closing)

    def _hang_up(self) -> None:
        links, self._links = self._links, Links(self._transport)
        task = asyncio.ensure_future(links.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
