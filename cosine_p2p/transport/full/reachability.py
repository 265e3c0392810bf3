"""Keeps a node reachable: requests dial-backs and relay reservations, and reports how others reach the node."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS, Scope, scope_of
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full.initial_peers import LOOK_S, InitialPeers
from cosine_p2p.transport.full.questions import QUESTION_S, ask_dial_back, ask_identity, ask_reservation
from cosine_p2p.transport.full.relay import CIRCUIT_BYTES
from cosine_p2p.transport.patience import end_all
from cosine_p2p.transport.reach import Findings, Reachable, ReachKind, is_open_to_all, judge_reach, parsed, scope_at
from cosine_protocol.errors import PeerLost

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon

logger = logging.getLogger(__name__)

RELAYS_KEPT: Final = 2  # With a single relay the node would be lost with it.
ASK_AGAIN_S: Final = 60.0  # Pause after a peer did not help; a peer dials back at most three times a minute.
DIAL_BACK_S: Final = 18.0  # A peer that cannot reach us answers after 15 s (measured).
FIRST_VERDICT_S: Final = 3.0  # `ready` waits for it; a peer that can reach us answers within two round trips.
MAX_SEEN: Final = 8  # Bounds the peers that are asked at which address they see us.
MAX_PLACES: Final = 3  # Bounds the addresses of a relay in a record, which holds at most sixteen.


@dataclass(slots=True)
class _Asked:
    """Peers' answers since the last move to another network."""

    circuits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seen_at: dict[str, str] = field(default_factory=dict)
    dialled_back: tuple[str, ...] = ()
    asked_back: int = 0
    tried_at_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def is_due(self, question: str, peer_id: str, now_s: float) -> bool:
        """Return True, and note the time, if a peer was not asked this for `ASK_AGAIN_S`."""
        if now_s - self.tried_at_s.get((question, peer_id), -ASK_AGAIN_S) < ASK_AGAIN_S:
            return False
        self.tried_at_s[question, peer_id] = now_s
        return True


class Reachability:
    """Checks in `run` how a node is reachable; `reach` is the result.

    `dial` opens a stream to a connected peer, bypassing the gate. `on_change` is awaited after each change of the
    announced addresses. With `insists` peers are asked even if none is public; with `is_named` the user specified
    the node's addresses.
    """

    def __init__(
        self,
        *,
        peer_id: str,
        daemon: Callable[[], Awaitable["Daemon"]],
        dial: Callable[[str, str], Awaitable[Stream]],
        initial: InitialPeers,
        asks_relays: bool,
        insists: bool,
        is_named: bool,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self.reach = Reachable(kind=ReachKind.UNTESTED)
        self._peer_id = peer_id
        self._daemon = daemon
        self._dial = dial
        self._initial = initial
        self._insists = insists
        self._is_named = is_named
        self._asks_relays = asks_relays
        self._on_change = on_change
        # A node with a public address tries it before relays.
        self._is_hopeful = any(scope_of(host) is Scope.PUBLIC for host in initial.local)
        self._moved = Remembered[str, frozenset[str]](MAX_KNOWN_PEERS)
        self._asked = _Asked()
        self._asking: set[asyncio.Future[None]] = set()
        self._has_answer = asyncio.Event()
        initial.on_met = self._has_answer.set

    async def first(self) -> None:
        """Set `reach`, as soon as the node is reachable or after `FIRST_VERDICT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_VERDICT_S):
                while await self._look() and self.reach.kind in (ReachKind.UNTESTED, ReachKind.NOBODY):
                    await self._has_answer.wait()
        # A peer that could reach us would have said so by now.
        self._is_hopeful = False
        await self._look()

    async def run(self) -> None:
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._has_answer.wait()
                await self._look()
        finally:
            await self._initial.close()
            await end_all(self._asking)

    def restarted(self) -> None:
        self._asked = _Asked()
        self._has_answer.set()

    async def _look(self) -> bool:
        """Check once; False if there is no public peer to ask."""
        self._has_answer.clear()
        try:
            has_moved, local = self._initial.has_moved(), self._initial.local
            if has_moved:
                if not local:
                    # A machine that changes networks has no address for a moment.
                    return False
                self._asked = _Asked()
                await self._initial.connect_anew()
            daemon = await self._daemon()
            ways, own = await daemon.ways(), await daemon.visible_maddrs()
            await self._hang_up_on_moved(ways)
            peers = public_peers(ways, self._initial.maddrs)
            # Impossible dials would delay p2pd's other dials.
            if local and (peers or self._initial.are_public or self._insists):
                await self._ask(ways, peers, own)
            has_met = self._initial.meet(ways)
            await self._judge(ways, peers, own, has_changed=has_moved or has_met)
        except PeerLost as error:
            logger.debug("the network could not be looked at: %s", error)
            return False
        return bool(peers)

    async def _hang_up_on_moved(self, ways: Mapping[str, Sequence[str]]) -> None:
        """Disconnect peers that changed their address, once for each pair: p2pd would use the dead connection."""
        for peer_id, maddrs in ways.items():
            at = [parsed(maddr) for maddr in maddrs if "/p2p-circuit" not in maddr]
            hosts = frozenset(each.host for each in at if each is not None and each.host_kind == "ip4")
            if len(hosts) > 1 and self._moved.get(peer_id) != hosts:
                self._moved.note(peer_id, hosts)
                logger.debug("%s has come from another address", peer_id)
                await (await self._daemon()).disconnect(peer_id)

    async def _ask(self, ways: Mapping[str, Sequence[str]], peers: Sequence[str], own: Sequence[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        asked = self._asked
        for peer_id in peers[:RELAYS_KEPT]:
            if not asked.dialled_back and asked.is_due("dial back", peer_id, now_s):
                # A router may admit only one of them, and light clients dial over TCP only.
                for kind in ("/tcp/", "/udp/"):
                    mine = [maddr for maddr in own if kind in maddr and "/p2p-circuit" not in maddr]
                    if mine:
                        task = asyncio.ensure_future(self._dial_back(asked, peer_id, mine))
                        self._asking.add(task)
                        task.add_done_callback(self._asking.discard)
        # A full-cone router admits only QUIC, and light clients dial over TCP.
        if not self._asks_relays or is_open_to_all(asked.dialled_back) or self._is_hopeful:
            return
        strange = [peer_id for peer_id in peers[:MAX_SEEN] if asked.is_due("identity", peer_id, now_s)]
        kept = list(asked.circuits)
        await asyncio.gather(
            *(self._identify(asked, peer_id) for peer_id in strange), *(self._renew(asked, relay) for relay in kept)
        )
        for peer_id in dict.fromkeys((*self._initial.maddrs, *peers)):
            if len(asked.circuits) >= RELAYS_KEPT:
                return
            # A relay that was just lost is tried at each check, others once in `ASK_AGAIN_S`.
            if peer_id not in asked.circuits and (peer_id in kept or asked.is_due("relay", peer_id, now_s)):
                await self._reserve(asked, peer_id, ways.get(peer_id, ()))

    async def _identify(self, asked: _Asked, peer_id: str) -> None:
        with suppress(PeerLost):
            asked.seen_at[peer_id] = (await ask_identity(self._dial, peer_id, timeout_s=QUESTION_S)).seen_at

    async def _renew(self, asked: _Asked, relay: str) -> None:
        try:
            await ask_reservation(self._dial, relay, least_bytes=CIRCUIT_BYTES, timeout_s=QUESTION_S)
        except PeerLost as lost:
            logger.info("the relay %s is lost: %s", relay, lost.reason)
            asked.circuits.pop(relay, None)
            asked.tried_at_s.pop(("relay", relay), None)
            await (await self._daemon()).disconnect(relay)

    async def _reserve(self, asked: _Asked, relay: str, ways: Sequence[str]) -> None:
        given = self._initial.maddrs.get(relay)
        try:
            if given is not None and not ways:
                await self._initial.connect(relay)
            told = await ask_reservation(self._dial, relay, least_bytes=CIRCUIT_BYTES, timeout_s=QUESTION_S)
        except PeerLost as lost:
            logger.debug("%s does not relay: %s", relay, lost.reason)
            if given is not None and not lost.reason.startswith("it does not"):
                # It may be back at the next check.
                asked.tried_at_s.pop(("relay", relay), None)
            if lost.retry_after_s is not None and not asked.circuits:
                # The relay listens again, and a new daemon has no dial backoff.
                logger.info("the network daemon does not dial the relay %s yet: it is started again", relay)
                await (await self._daemon()).close()
            return
        # The address that works here, and those that the relay names: light clients need one over TCP.
        public = [maddr for maddr in told.maddrs if scope_at(maddr) is Scope.PUBLIC and "/p2p-circuit" not in maddr]
        places = dict.fromkeys(maddr.partition("/p2p/")[0] for maddr in (*([given] if given else ways), *public))
        asked.circuits[relay] = tuple(
            f"{place}/p2p/{relay}/p2p-circuit/p2p/{self._peer_id}" for place in list(places)[:MAX_PLACES]
        )
        logger.info("the relay %s leads to this node", relay)

    async def _dial_back(self, asked: _Asked, peer_id: str, own: Sequence[str]) -> None:
        try:
            reached = await ask_dial_back(self._dial, peer_id, self._peer_id, own, timeout_s=DIAL_BACK_S)
        except PeerLost:
            return
        finally:
            self._has_answer.set()
        asked.asked_back += 1
        if reached is not None and scope_at(reached) is Scope.PUBLIC:
            whole = f"{reached.partition('/p2p/')[0]}/p2p/{self._peer_id}"
            asked.dialled_back = tuple(dict.fromkeys((*asked.dialled_back, whole)))

    async def _judge(
        self, ways: Mapping[str, Sequence[str]], peers: Sequence[str], own: Sequence[str], *, has_changed: bool
    ) -> None:
        asked = self._asked
        if not self._is_named and not any(scope_of(host) is Scope.PUBLIC for host in self._initial.local):
            # Peers see the router's address, which leads here only after a successful dial-back.
            own = [maddr for maddr in own if scope_at(maddr) is not Scope.PUBLIC]
        findings = Findings(
            own=tuple(own),
            dialled_back=asked.dialled_back,
            circuits=tuple(maddr for maddrs in asked.circuits.values() for maddr in maddrs),
            seen_at={peer_id: at for peer_id, at in asked.seen_at.items() if peer_id in ways},
            asked_back=asked.asked_back + (not self._is_hopeful),
            public_peers=len(peers) or self._initial.are_public,
            is_alone=not self._initial.maddrs,
            is_named=self._is_named,
        )
        before, self.reach = self.reach, judge_reach(findings)
        if before != self.reach:
            logger.info("%s", self.reach)
        if has_changed or before.addresses != self.reach.addresses:
            await self._on_change()


def public_peers(ways: Mapping[str, Sequence[str]], first: Collection[str] = ()) -> list[str]:
    """Connected peers that have a public address, those in `first` first."""
    found = [
        peer_id
        for peer_id, maddrs in ways.items()
        if any(scope_at(maddr) is Scope.PUBLIC and "/p2p-circuit" not in maddr for maddr in maddrs)
    ]
    return sorted(found, key=lambda peer_id: peer_id not in first)
