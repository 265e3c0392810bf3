"""A cache of a client's look-ups."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cosine_p2p.directory.directory import Directory
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import ask_patiently, end_all
from cosine_protocol.errors import ClockOff
from cosine_protocol.records import NodeRecord, Role

LOG = logging.getLogger(__name__)
REUSE_S: Final = 2.0  # A look-up and its checks take about 20 ms on two cores (measured): two short passes.
KEEP_S: Final = 120.0
"""The maximum age of a look-up that a request uses while the next one is running; records live for five minutes. If
peers are 20 ms away a look-up takes 0.2 to 0.3 s (measured)."""
PAUSES_S: Final = (0.5, 1.5)  # A DHT may take a moment to show a new node.
MAX_FINDS: Final = 64  # Bounds memory; a client has few look-ups: two roles of its target.


@dataclass(frozen=True, slots=True)
class _Find:
    records: list[NodeRecord]
    found_at_s: float
    lost_links: int
    is_recalled: bool = False  # Of an earlier run.


_Key = tuple[Role, str, int | None]


class RecentFinds:
    """Looks nodes up in a directory, unless there is a recent result and no link was lost since.

    A result older than `reuse_s` but not `KEEP_S`, or recalled from an earlier run, is used while it is renewed.
    With a `reuse_s` of 0 nothing is reused. Empty results are kept for drafters only.
    """

    def __init__(
        self, directory: Directory, links: Links, clock: Callable[[], float], *, reuse_s: float = REUSE_S
    ) -> None:
        self._directory = directory
        self._links = links
        self._clock = clock
        self._reuse_s = reuse_s
        self._finds = Remembered[_Key, _Find](MAX_FINDS, forgotten_s=KEEP_S)
        self._renewing: dict[_Key, asyncio.Task[None]] = {}
        self._looking: dict[_Key, asyncio.Task[list[NodeRecord]]] = {}
        self._was_answered = False
        # Those of an earlier run are used once.
        self._begun: set[_Key] = set()

    async def find(
        self, role: Role, target: str, *, wanted: int | None = None, patience_s: float = 0.0
    ) -> list[NodeRecord]:
        """Return recent live records. Raises as `Directory.find`, if nodes answered before after `patience_s`.

        A disconnected client, for example while its network daemon restarts, soon reconnects. A client that never
        got an answer may not be a member of a private swarm.
        """
        key = role, target, wanted
        now_s = self._clock()
        known = self._finds.get(key, now_s) or self._recall(key, now_s)
        if not self._reuse_s or known is None or known.lost_links != self._links.lost_links:
            look_up = partial(self._look_up, key)
            return await ask_patiently(look_up, patience_s=patience_s if self._was_answered else 0.0)
        self.begin_renewal(role, target, wanted=wanted)
        return known.records

    def begin_renewal(self, role: Role, target: str, *, wanted: int | None = None) -> None:
        key, now_s = (role, target, wanted), self._clock()
        known = self._finds.get(key, now_s)
        is_old = known is None or now_s - known.found_at_s >= self._reuse_s
        if self._reuse_s and is_old and key not in self._renewing:
            self._renewing[key] = task = asyncio.ensure_future(self._renew(key))
            task.add_done_callback(lambda _: self._renewing.pop(key))

    async def find_anew(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """The result of a new look-up, shared by concurrent callers. Raises as `Directory.find`."""
        key = role, target, wanted
        looking = self._looking.get(key)
        if looking is None:
            self._looking[key] = looking = asyncio.ensure_future(self._look_up(key))
            looking.add_done_callback(lambda _: self._looking.pop(key))
        # A cancelled caller does not cancel it for others.
        return await asyncio.shield(looking)

    async def find_some(
        self, role: Role, target: str, *, wanted: int | None = None, patience_s: float = 0.0
    ) -> list[NodeRecord]:
        """`find`, repeated after pauses while no node is found. Raises `ClockOff` only after the last."""
        find = partial(self.find, role, target, wanted=wanted, patience_s=patience_s)
        for pause_s in PAUSES_S:
            with suppress(ClockOff):
                if found := await find():
                    return found
            await asyncio.sleep(pause_s)
        return await find()

    def is_recalled(self, role: Role, target: str, *, wanted: int | None = None) -> bool:
        known = self._finds.get((role, target, wanted), self._clock())
        return known is not None and known.is_recalled

    async def look_again(self, role: Role, target: str, *, wanted: int | None = None) -> None:
        """Wait until a recalled result is renewed; if that fails, the next `find` looks up."""
        key = role, target, wanted
        if key in self._renewing:
            await asyncio.wait((self._renewing[key],))
        if self.is_recalled(role, target, wanted=wanted):
            self._finds.pop(key)

    def _recall(self, key: _Key, now_s: float) -> _Find | None:
        role, target, _ = key
        records = self._directory.recall(role, target) if self._reuse_s and key not in self._begun else None
        self._begun.add(key)
        if records is None or not (records or role is Role.DRAFTER):
            return None
        find = _Find(records, now_s - self._reuse_s, self._links.lost_links, is_recalled=True)
        self._finds.note(key, find, now_s)
        return find

    async def _look_up(self, key: _Key) -> list[NodeRecord]:
        role, target, wanted = key
        lost_links = self._links.lost_links
        records = await self._directory.find(role, target, wanted=wanted)
        self._was_answered = True
        self._finds.pop(key)
        self._begun.add(key)
        if records or role is Role.DRAFTER:
            now_s = self._clock()
            self._finds.note(key, _Find(records, now_s, lost_links), now_s)
        return records

    async def _renew(self, key: _Key) -> None:
        try:
            await self._look_up(key)
        except Exception as error:
            # The next request looks up once this is too old.
            LOG.info("%ss could not be looked up again: %s", key[0], error)

    async def close(self) -> None:
        await end_all([*self._renewing.values(), *self._looking.values()])
