"""Who is in the swarm, as seen from here: every announced node of a target, asked for its own account."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from cosine_p2p.client import Swarm
from cosine_p2p.link import Delivery, Link, Links
from cosine_p2p.target import Target
from cosine_protocol import messages as m
from cosine_protocol.errors import CosineError, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import NodeRecord, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """One node as seen from here. `reason` says why it was not reached; "" if it was.

    `requests` are those it serves now, `passes` those it has run since it started `uptime_s` ago.
    """

    record: NodeRecord
    rtt_s: float | None
    requests: int | None
    passes: int | None
    uptime_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The nodes of a target: verifiers first, then drafters, each by peer id.

    `problem` says why the directory did not answer, or not in full; "" if it did.
    """

    target: str
    nodes: tuple[NodeSight, ...]
    problem: str


class Surveyor:
    """Looks at a swarm as often as asked; links to its nodes stay open in between. End it with `close`.

    `target` is NAME[@DIGEST] or a folder. Each node has `ask_timeout_s` to be reached and to answer, `at_once` of
    them are asked at a time. Raises `UsageError` for a target that cannot be read.
    """

    def __init__(self, swarm: Swarm, *, target: str, ask_timeout_s: float = 4.0, at_once: int = 16) -> None:
        self._swarm = swarm
        self._text = target
        self._target = Target.parse(target)
        self._ask_timeout_s = ask_timeout_s
        self._turns = asyncio.Semaphore(at_once)
        self._links = Links(swarm.transport)
        self._numbers = count(1)
        self._asked: frozenset[str] = frozenset()

    async def survey(self) -> Survey:
        """What is there now. Never raises for a peer's or the network's failure."""
        verifiers, drafters = await asyncio.gather(self._find(Role.VERIFIER), self._find(Role.DRAFTER))
        records = [*_by_peer(verifiers[0]), *_by_peer(drafters[0])]
        await self._leave(self._asked - {record.peer_id for record in records})
        self._asked = frozenset(record.peer_id for record in records)
        nodes = await asyncio.gather(*map(self._sight, records))
        return Survey(target=self._text, nodes=tuple(nodes), problem=verifiers[1] or drafters[1])

    async def close(self) -> None:
        await self._links.close()

    async def _leave(self, gone: Iterable[str]) -> None:
        """Keep no links to nodes that are no longer announced."""
        await asyncio.gather(*(self._links.drop(peer_id, STATUS) for peer_id in gone))

    async def _find(self, role: Role) -> tuple[Sequence[NodeRecord], str]:
        """The announced nodes of a role, or none and the reason."""
        try:
            found = await self._swarm.directory.find(role, self._target.name)
        except CosineError as error:
            return (), str(error)
        digest = self._target.digest
        return [record for record in found if digest is None or record.target_digest == digest], ""

    async def _sight(self, record: NodeRecord) -> NodeSight:
        async with self._turns:
            try:
                async with asyncio.timeout(self._ask_timeout_s):
                    return await self._ask(record)
            except TimeoutError:
                reason = f"no answer within {self._ask_timeout_s:g} s"
            except PeerLost as lost:
                reason = lost.reason
            except (PeerError, RemoteProtocolError) as error:
                reason = str(error)
        return NodeSight(record=record, rtt_s=None, requests=None, passes=None, uptime_s=None, reason=reason)

    async def _ask(self, record: NodeRecord) -> NodeSight:
        is_new = self._links.alive(record.peer_id, STATUS) is None
        link = await self._links.get(record.peer_id, STATUS)
        if is_new:
            # The first answer also waits for the stream to be agreed on, which would count as distance.
            await self._answer(link)
        began_s = asyncio.get_running_loop().time()
        status = await self._answer(link)
        waited_s = asyncio.get_running_loop().time() - began_s
        return NodeSight(
            record=record,
            rtt_s=min(waited_s, link.rtt_s or waited_s),
            requests=status.requests,
            passes=status.steps,
            uptime_s=status.uptime_s,
            reason="",
        )

    async def _answer(self, link: Link) -> m.Status:
        number = next(self._numbers)
        delivered: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def note(delivery: Delivery) -> None:
            if not delivered.done():
                delivered.set_result(delivery)

        link.subscribe(number, note)
        try:
            if not link.post(m.AskStatus(number)):
                raise PeerLost(link.channel.peer_id, "it reads too slowly")
            return _status_of(await delivered)
        finally:
            link.unsubscribe(number)


def _status_of(delivery: Delivery) -> m.Status:
    match delivery.message:
        case m.Status() as status:
            return status
        case None:
            raise PeerLost(delivery.peer_id, delivery.lost or "the link ended")
        case m.Error(code=code, message=message, retry_after_s=retry_after_s):
            raise PeerError(code, message, retry_after_s)
        case other:
            raise RemoteProtocolError(f"it answered with {type(other).__name__}")


def _by_peer(records: Sequence[NodeRecord]) -> list[NodeRecord]:
    return sorted(records, key=lambda record: record.peer_id)
