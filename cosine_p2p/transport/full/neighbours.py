"""Neighbours: peers behind the same router, which can connect at private addresses instead of through a relay.

A peer that is reached only through relays is asked for its private addresses. The question contains the public
addresses at which peers see the asker; only a peer that is seen at one of them answers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from multiaddr import Multiaddr

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS, MAX_TRIES, TRIES_WINDOW_S, Scope, scope_of
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full.initial_peers import is_dialable
from cosine_p2p.transport.full.questions import (
    QUESTION_S,
    Dial,
    ask,
    ask_identity,
    field,
    fields,
    maddrs_in,
    message,
    read_message,
)
from cosine_p2p.transport.full.reachability import public_peers
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.reach import LEAST_PORT, parsed
from cosine_protocol.errors import PeerLost

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon

NEIGHBOUR: Final = "/cosine/neighbour/1.0.0"
LISTENS_S: Final = 0.5  # Timeout of a connection within the local network.
ASK_AGAIN_S: Final = 600.0  # Pause after a peer was no neighbour, unless this machine is seen elsewhere.
SEEN_S: Final = 60.0  # The minimum interval between requests for the address at which peers see this machine.
OBSERVERS: Final = 3  # The number of peers that are asked for it.
MAX_PLACES: Final = 4  # Bounds the addresses of one peer.


class Neighbours:
    """Finds the private addresses of neighbours, and tells them this node's."""

    def __init__(self, *, daemon: Callable[[], Awaitable["Daemon"]], ask_peer: Dial, dial: Dial) -> None:
        self._daemon = daemon
        self._ask_peer = ask_peer
        self._dial = dial
        self._strangers = Remembered[str, frozenset[str]](MAX_KNOWN_PEERS, forgotten_s=ASK_AGAIN_S)
        # By this machine's addresses at that time.
        self._seen_at = Remembered[frozenset[str], frozenset[str]](1, forgotten_s=SEEN_S)
        self._tries_s = deque[float](maxlen=MAX_TRIES)

    async def private_maddrs_of(self, peer_id: str) -> tuple[str, ...]:
        """The private addresses at which a peer seems to listen, if both are seen at one public address."""
        now_s = asyncio.get_running_loop().time()
        seen_at = await self._where_seen(now_s)
        if not seen_at or self._strangers.get(peer_id, now_s) == seen_at:
            return ()
        self._strangers.note(peer_id, seen_at, now_s)
        question = b"".join(field(1, host.encode()) for host in sorted(seen_at))
        try:
            answer = await ask(self._dial, peer_id, NEIGHBOUR, question, QUESTION_S)
            places = tuple(maddr for maddr in maddrs_in(answer, 2) if _is_place(maddr))[:MAX_PLACES]
        except (PeerLost, ValueError):
            return ()
        is_spent = len(self._tries_s) == MAX_TRIES and now_s - self._tries_s[0] < TRIES_WINDOW_S
        if not places or is_spent:
            return ()
        self._tries_s.append(now_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTENS_S):
                return places if await is_dialable(places) else ()
        return ()

    def note_met(self, peer_id: str) -> None:
        self._strangers.pop(peer_id)

    async def answer(self, stream: Stream) -> None:
        with suppress(PeerLost, ValueError, TimeoutError):
            async with asyncio.timeout(2 * QUESTION_S):
                named = {value for number, value in fields(await read_message(stream)) if number == 1}
                seen_at = await self._where_seen(asyncio.get_running_loop().time())
                is_near = not named.isdisjoint(host.encode() for host in seen_at)
                await stream.write(message(await self._own_places() if is_near else b""))

    async def _own_places(self) -> bytes:
        own, local = await (await self._daemon()).visible_maddrs(), local_hosts(())
        near = [maddr.partition("/p2p/")[0] for maddr in own if _is_place(maddr)]
        # Addresses on the route to the router come first; others belong to networks within this machine.
        near.sort(key=lambda maddr: maddr.split("/")[2] not in local)
        return b"".join(field(2, Multiaddr(maddr).to_bytes()) for maddr in near[:MAX_PLACES])

    async def _where_seen(self, now_s: float) -> frozenset[str]:
        local = local_hosts(())
        known = self._seen_at.get(local, now_s)
        if known is None:
            with suppress(PeerLost):
                if peers := public_peers(await (await self._daemon()).ways())[:OBSERVERS]:
                    known = frozenset(filter(None, await asyncio.gather(*map(self._host_seen_by, peers))))
                    self._seen_at.note(local, known, now_s)
        return known or frozenset()

    async def _host_seen_by(self, peer_id: str) -> str | None:
        with suppress(PeerLost):
            address = parsed((await ask_identity(self._ask_peer, peer_id, timeout_s=QUESTION_S)).seen_at)
            if address is not None and scope_of(address.host) is Scope.PUBLIC:
                return address.host
        return None


def _is_place(maddr: str) -> bool:
    address = parsed(maddr)
    return (
        address is not None
        and address.is_plain_tcp
        and address.relay is None
        and address.port >= LEAST_PORT
        and scope_of(address.host) is Scope.PRIVATE
    )
