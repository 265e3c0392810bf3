"""A survey of a swarm: every announced node of a target is asked for its status."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from cosine_p2p.client import Swarm
from cosine_p2p.directory.served_targets import WANTED_NODES
from cosine_p2p.text.target import Target
from cosine_p2p.transport.link import Link, Links
from cosine_protocol.discover import STATUS, AskStatus, Status
from cosine_protocol.errors import CosineError, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role

LOOK_AGAIN_S: Final = (0.5, 1.5)
"""Pauses before further look-ups: a DHT may show nodes late to a new peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """A node and its status. `reason`: why it was not reached; "" if it was.

    In `uptime_s` the node made `passes`; clients of a drafter `accepted` some of the `text_tokens` it drafted for,
    as it reports.
    """

    record: NodeRecord
    rtt_s: float | None = None
    requests: int | None = None
    passes: int | None = None
    uptime_s: float | None = None
    accepted: int | None = None
    text_tokens: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The nodes of one or all targets, by role and peer id. `problem`: why they may be incomplete."""

    target: str
    nodes: tuple[NodeSight, ...]
    problem: str


async def ask_status(link: Link, numbers: Iterator[int], *, is_new: bool) -> tuple[Status, float]:
    """A node's status and the round-trip time in seconds. Raises as `Link.ask`, and `RemoteProtocolError`."""
    loop = asyncio.get_running_loop()
    if is_new:
        # The first answer includes the negotiation of the stream, which does not count as distance.
        await link.ask(AskStatus(next(numbers)))
    began_s = loop.time()
    status = await link.ask(AskStatus(next(numbers)))
    waited_s = loop.time() - began_s
    if not isinstance(status, Status):
        raise RemoteProtocolError(f"it answered with {type(status).__name__}")
    return status, min(waited_s, link.rtt_s or waited_s)


class Surveyor:
    """Surveys a swarm repeatedly over links that stay open. End it with `close`.

    `target` is NAME[@DIGEST], a folder, or `ALL_TARGETS` for a sample. A node has `ask_timeout_s` to answer. Raises
    `UsageError` for a target that cannot be read.
    """

    def __init__(self, swarm: Swarm, *, target: str, ask_timeout_s: float = 4.0) -> None:
        self._swarm = swarm
        self._text = target
        self._target = Target.parse(target)
        self._ask_timeout_s = ask_timeout_s
        self._places = asyncio.Semaphore(16)  # Bounds the nodes that are asked at once.
        self._links = Links(swarm.transport)
        self._numbers = count(1)
        self.asked: frozenset[str] = frozenset()

    async def survey(self) -> Survey:
        """Survey once. Never raises for a failure of a peer or the network."""
        roles = (Role.VERIFIER, Role.DRAFTER, Role.STAGE)
        found = await asyncio.gather(*map(self._find, roles))
        records = [record for of_role, _ in found for record in sorted(of_role, key=lambda each: each.peer_id)]
        # No links are kept to nodes that are no longer announced.
        announced = frozenset(record.peer_id for record in records)
        await asyncio.gather(*(self._links.drop(peer_id, STATUS) for peer_id in self.asked - announced))
        self.asked = announced
        problem = next((reason for _, reason in found if reason), "")
        return Survey(target=self._text, nodes=await self.look_at(records), problem=problem)

    async def look_at(self, records: Sequence[NodeRecord]) -> tuple[NodeSight, ...]:
        """Ask these nodes. Never raises for a failure of a peer."""
        return tuple(await asyncio.gather(*map(self._look_at, records)))

    async def close(self) -> None:
        await self._links.close()

    async def _find(self, role: Role) -> tuple[Sequence[NodeRecord], str]:
        try:
            wanted = WANTED_NODES if self._text == ALL_TARGETS else None
            found = await self._swarm.directory.find(role, self._target.name, wanted=wanted)
        except CosineError as error:
            return (), str(error)
        digest = self._target.digest
        return [record for record in found if digest is None or record.target_digest == digest], ""

    async def _look_at(self, record: NodeRecord) -> NodeSight:
        async with self._places:
            try:
                async with asyncio.timeout(self._ask_timeout_s):
                    is_new = self._links.alive(record.peer_id, STATUS) is None
                    link = await self._links.get(record.peer_id, STATUS)
                    status, rtt_s = await ask_status(link, self._numbers, is_new=is_new)
                return NodeSight(
                    record=record,
                    rtt_s=rtt_s,
                    requests=status.requests,
                    passes=status.steps,
                    uptime_s=status.uptime_s,
                    accepted=status.accepted,
                    text_tokens=status.text_tokens,
                )
            except TimeoutError:
                reason = f"no answer within {self._ask_timeout_s:g} s"
            except PeerLost as lost:
                reason = lost.reason
            except (PeerError, RemoteProtocolError) as error:
                reason = str(error)
        return NodeSight(record=record, reason=reason)


async def first_survey(surveyor: Surveyor) -> Survey:
    """Survey a swarm after joining, with retries if no node is found."""
    survey = await surveyor.survey()
    for pause_s in LOOK_AGAIN_S:
        if not survey.nodes:
            await asyncio.sleep(pause_s)
            survey = await surveyor.survey()
    return survey
