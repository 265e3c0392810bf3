"""Keeps a transport connected to its initial peers; p2pd would wait longer after each failed dial."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cosine_p2p.transport.addresses import Scope, scope_of
from cosine_p2p.transport.config import peer_of
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.patience import end_all
from cosine_p2p.transport.reach import parsed
from cosine_protocol.errors import PeerLost

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # Five checks in the 10 s within which a node must be reachable again.
STOOD_STILL_S: Final = 30.0  # Peers give up the connections of a machine suspended for this long.
CONNECT_S: Final = 4.0  # The same as a client's dial timeout.
LISTENS_S: Final = 2.0  # Timeout of a TCP connection: six round trips of 300 ms.
MEET_SELDOM: Final = 10.0  # An absent peer is dialled again after a tenth of the time of its absence.
MEET_S: Final = 6.0  # The maximum of that pause: after a day still within 10 s, at ten packets a minute.


class InitialPeers:
    """Initial peers and relays by full address, with their IP addresses `hosts`.

    A client uses `run`; a node calls `has_moved` and `meet` itself.
    """

    def __init__(
        self, maddrs: Sequence[str], *, hosts: Sequence[str], daemon: Callable[[], Awaitable["Daemon"]]
    ) -> None:
        self.maddrs = {peer_of(maddr): maddr for maddr in reversed(maddrs)}
        # An absent public peer does not make the network a local one.
        self.are_public = any(scope_of(host) is Scope.PUBLIC for host in hosts)
        self.local = local_hosts(hosts)
        self._hosts = tuple(hosts)
        # Loopback addresses do not change with the network.
        self._are_here = bool(hosts) and all(scope_of(host) is Scope.LOOPBACK for host in hosts)
        self._daemon = daemon
        self._looked_at_s = elapsed_s()
        self.on_met: Callable[[], None] = lambda: None
        self._met: set[str] = set()
        self._silent: set[str] = set()
        self._away_since_s: dict[str, float] = {}
        self._dialled_at_s: dict[str, float] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                with suppress(PeerLost):
                    has_moved = self.has_moved()
                    if not self.local:
                        continue
                    if has_moved:
                        await self.connect_anew()
                    self.meet(await (await self._daemon()).ways())
        finally:
            await self.close()

    async def close(self) -> None:
        await end_all(self._dials.values())

    def is_silent(self, peer_id: str) -> bool:
        return peer_id in self._silent

    def has_moved(self) -> bool:
        """True if this machine's addresses changed, or it was suspended, since the last call."""
        local = self.local if self._are_here else local_hosts(self._hosts)
        has_moved, self.local = local != self.local, local
        now_s = elapsed_s()
        stood_still_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        if has_moved:
            logger.info("the addresses of this machine are now: %s", ", ".join(sorted(local)) or "none")
        elif stood_still_s > STOOD_STILL_S:
            logger.info("this machine was suspended for %.0f s", stood_still_s)
        return has_moved or stood_still_s > STOOD_STILL_S

    async def connect_anew(self) -> None:
        """Drop all connections, which p2pd would consider alive for 40 s, and dial again."""
        daemon = await self._daemon()
        with suppress(PeerLost):
            await asyncio.gather(*map(daemon.disconnect, await daemon.ways()))
        await asyncio.gather(*map(self._meet, self.maddrs))

    def meet(self, ways: Mapping[str, Sequence[str]]) -> bool:
        """Dial the peers without a connection; True if one has reconnected."""
        now_s, met = asyncio.get_running_loop().time(), self.maddrs.keys() & ways.keys()
        is_back, self._met = bool(met - self._met), met
        self._silent -= met
        for peer_id in met:
            self._away_since_s.pop(peer_id, None)
        for peer_id in self.maddrs.keys() - met - self._dials.keys():
            away_s = now_s - self._away_since_s.setdefault(peer_id, now_s)
            if now_s - self._dialled_at_s.get(peer_id, -math.inf) >= min(away_s / MEET_SELDOM, MEET_S):
                self._dialled_at_s[peer_id] = now_s
                self._begin(peer_id)
        return is_back

    async def connect(self, peer_id: str) -> None:
        """Raises `PeerLost`."""
        if not await listens_at(self.maddrs[peer_id]):
            self._silent.add(peer_id)
            raise PeerLost(peer_id, "nothing listens at its address any more")
        self._silent.discard(peer_id)
        await (await self._daemon()).connect(peer_id, (self.maddrs[peer_id],), CONNECT_S)

    def _begin(self, peer_id: str) -> None:
        self._dials[peer_id] = dial = asyncio.create_task(self._meet(peer_id))
        dial.add_done_callback(lambda _: self._dials.pop(peer_id))

    async def _meet(self, peer_id: str) -> None:
        with suppress(PeerLost):
            await self.connect(peer_id)
            self.on_met()


def elapsed_s() -> float:
    """Seconds of a monotonic clock that runs while the machine is suspended (Linux, macOS)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


async def is_dialable(maddrs: Iterable[str]) -> bool:
    """True if a program listens at one of the TCP addresses, or if there is none to try."""
    plain = [maddr for maddr in maddrs if (address := parsed(maddr)) is not None and address.is_plain_tcp]
    return not plain or any(await asyncio.gather(*map(listens_at, plain)))


async def listens_at(maddr: str) -> bool:
    address = parsed(maddr)
    if address is None or not address.is_plain_tcp:
        return True
    try:
        async with asyncio.timeout(LISTENS_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
