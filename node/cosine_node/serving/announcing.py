"""Announces a node's record: renews it in time and after changes, and withdraws it at the end."""

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

# A compromise between fresh records and traffic. A record is renewed after a third of its lifetime, so that it
# outlives two failed renewals; a dead node is found for the rest. A load that changes with every request is
# announced at most twelve times a minute.
LIFETIME_S: Final = 300.0
MIN_INTERVAL_S: Final = 5.0
RETRY_S: Final = 2.0
"""A node that cannot be found serves nobody, so it retries often."""

# The last record expires at once, and an unreachable network does not delay the node's stop.
GOODBYE_LIFETIME_S: Final = 1.0
GOODBYE_TIMEOUT_S: Final = 3.0

STATUS_KEY: Final = "status"
"""The key that `latest` is signed for: it is sent in `Status`, not stored in the DHT."""


class Announcer:
    """Announces the record that `describe` returns, with its sequence and times.

    `clock` returns Unix seconds. Run it with `run`; call `changed` regularly and after changes of load or
    addresses; end with `stop`. `is_stored` is the result of the last announcement. Unless `is_reachable`, the node
    is not announced, and its last record expires at once.
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
        """Announce soon if the record differs from the last one or is due."""
        self._has_changed.set()

    async def restarted(self) -> None:
        """Announce at once, even an unchanged record, after the transport was restarted or moved."""
        self._announced = None
        self._has_changed.set()
        self._is_elsewhere.set()

    async def announce(self, *, lifetime_s: float = LIFETIME_S) -> bool:
        """Announce now. Return False, and log it, if no peer stored the record or the node is unreachable."""
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
            # Only the first failure is a warning.
            level = logging.DEBUG if self.is_stored is False else logging.WARNING
            LOG.log(level, "no peer can find this node for now (%s); trying again every %g s", error, RETRY_S)
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
        """Return True if the record has changed, except for its coordinate, or is old.

        Its age is read from the clock, as timers stop while a machine is suspended.
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
        """Replace the record by one that expires in a second."""
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                await self.announce(lifetime_s=GOODBYE_LIFETIME_S)
        except TimeoutError:
            LOG.debug("the goodbye could not be announced in time")
