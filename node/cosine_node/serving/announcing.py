"""Keeps a node's record in the directory: renewed in time, at once when it changes, withdrawn at the end."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cosine_p2p.directory.directory import Directory
from cosine_p2p.transport.patience import unless_stopped
from cosine_protocol.errors import CosineError
from cosine_protocol.identity import Identity
from cosine_protocol.records import NodeRecord, seal_record

LOG = logging.getLogger(__name__)

# Fresh records against traffic. A record is renewed when a third of its life is over, so that it outlives two
# renewals that fail; a node that died is found for the rest, with twice the life for ten minutes, and with half of
# it those at rest write twice as often. A load that changes with every request is announced twelve times a minute
# at most.
LIFETIME_S: Final = 300.0
MIN_INTERVAL_S: Final = 5.0
RETRY_S: Final = 2.0
"""Whoever cannot be found serves nobody: as often as a node looks how it is reached."""

# The last record lapses at once, and a network that is away does not hold up the end of the node.
GOODBYE_LIFETIME_S: Final = 1.0
GOODBYE_TIMEOUT_S: Final = 3.0

STATUS_KEY: Final = "status"
"""The key `latest` is signed for: it travels in `Status`, not in the DHT."""


class Announcer:
    """Announces the record that `describe` returns, as often as needed; its sequence and times are set here.

    `clock` gives Unix seconds. Run it with `run`; call `changed` when load or addresses may have changed, and now
    and then, to have the record compared with the clock; end with `stop`. `is_stored` tells how the last
    announcement went. A node that nobody can reach, as `is_reachable` says, is not announced, and what it has
    announced lapses at once.
    """

    def __init__(
        self,
        directory: Directory,
        identity: Identity,
        describe: Callable[[], NodeRecord],
        names: Sequence[str],
        *,
        is_reachable: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.latest: bytes | None = None
        self.is_stored: bool | None = None
        self._directory = directory
        self._identity = identity
        self._describe = describe
        self._names = tuple(names)
        self._is_reachable = is_reachable
        self._clock = clock
        self._sequence = 0
        self._has_changed = asyncio.Event()
        self._is_elsewhere = asyncio.Event()
        self._announced: NodeRecord | None = None

    def changed(self) -> None:
        """Announce soon, unless nothing in the record differs from the last one."""
        self._has_changed.set()

    async def restarted(self) -> None:
        """Announce again once the transport is back or elsewhere, also where nothing in the record has changed."""
        self._announced = None
        self._has_changed.set()
        self._is_elsewhere.set()

    async def announce(self, *, lifetime_s: float = LIFETIME_S) -> bool:
        """Announce now; False, with a log line, if nobody took the record or could reach the node."""
        is_reachable = self._is_reachable()
        if not is_reachable:
            lifetime_s = GOODBYE_LIFETIME_S
        now_s = self._clock()
        self._sequence = max(self._sequence + 1, int(now_s * 1000))
        record = replace(self._describe(), sequence=self._sequence, issued_at_s=float(now_s), lifetime_s=lifetime_s)
        self.latest = seal_record(record, self._identity, key=STATUS_KEY)
        self._announced = record
        if not is_reachable and not self.is_stored:
            self.is_stored = False
            return False
        try:
            await self._directory.announce(record, self._names)
        except CosineError as error:
            # Told once, not every time.
            level = logging.DEBUG if self.is_stored is False else logging.WARNING
            LOG.log(level, "nobody can find this node for now (%s); trying again every %g s", error, RETRY_S)
            self.is_stored = False
            return False
        if self.is_stored is False:
            LOG.info("this node can be found again")
        self.is_stored = is_reachable
        return is_reachable

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._has_changed.clear()
            self._is_elsewhere.clear()
            is_stored = await unless_stopped(self.announce(), self._is_elsewhere)
            if is_stored is None:
                # What was to be told is no longer so.
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(MIN_INTERVAL_S if is_stored else RETRY_S):
                    await self._is_elsewhere.wait()
            if not is_stored:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LIFETIME_S / 3 - MIN_INTERVAL_S):
                    while not self._is_due():
                        self._has_changed.clear()
                        await self._has_changed.wait()

    def _is_due(self) -> bool:
        """True if the record has really changed, or is old by the clock of those who keep it.

        A node's place can wait until it is renewed. Timers stand still with a machine that is suspended.
        """
        if self._announced and not 0.0 <= self._clock() - self._announced.issued_at_s < LIFETIME_S / 3:
            return True
        if not self._has_changed.is_set():
            return False
        now, before = (
            record and replace(record, sequence=0, issued_at_s=0.0, lifetime_s=0.0, coordinate=None)
            for record in (self._describe(), self._announced)
        )
        return now != before

    async def stop(self) -> None:
        """Replace the record by one that lapses in a second."""
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                await self.announce(lifetime_s=GOODBYE_LIFETIME_S)
        except TimeoutError:
            LOG.debug("the goodbye could not be announced in time")
