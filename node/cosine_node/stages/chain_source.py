"""Finds stages for a head, keeps what it knows of them, and opens one chain after the other."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.stages.chain_search import FoundChain, StageSight, find_chain, loaded_pass_s
from cosine_node.stages.operations import ChainLost, NoChain
from cosine_node.stages.remote_chain import ChainPlan, RemoteChain, StagePlace, open_chain
from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_p2p.transport.base import Transport
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.errors import CosineError
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.records import NodeRecord, Role

LOG = logging.getLogger(__name__)
OPEN_S: Final = 4.5
"""Whoever waits for a chain hears within 5 s that there is none."""
GONE_S: Final = 10.0
"""A stage that failed is not asked again for so long, though its record lives on, unless it has announced
itself since. Afterwards it is asked where nobody else holds its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainNeeds:
    """What a head wants of a chain: the target, and the tokens of the pool, if stages have room for so many."""

    target_digest: bytes
    layers: int
    vocab_tokens: int
    pool_tokens: int
    least_pool_tokens: int


class ChainSource:
    """Opens chains over the stages of a target, one at a time. `run` keeps it informed; cancel that to stop.

    The numerics and the size of the pool are those of the first chain, and hold for all after it. `here` tells
    where the head is.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        needs: ChainNeeds,
        *,
        here: Callable[[], NetworkCoordinate | None] = lambda: None,
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._needs = needs
        self.here = here
        self.numerics: str | None = None
        self.pool_tokens: int | None = None
        self.found: FoundChain | None = None
        self._records: list[NodeRecord] = []
        self._rtts_s: dict[str, float] = {}
        self._failures = PeerFailures()
        self._failed: dict[str, tuple[float, int]] = {}
        self._chain: RemoteChain | None = None
        self._opened = AsyncExitStack()

    async def run(self) -> None:
        """Look for stages now and then, until cancelled."""
        while True:
            await self._look()
            self._measure()
            # A spare that has come is known soon, and a look-up costs others little.
            await asyncio.sleep(10.0)

    async def close(self) -> None:
        """End the chain, if there is one."""
        if self._chain is not None and self._chain.lost.is_set() and self._chain.failed_peer is not None:
            self._note_failed(self._chain.failed_peer)
        self._measure()
        self._chain = None
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()

    async def open(self, *, first_sequence: int) -> RemoteChain:
        """Another chain, in place of the one before. Raises `NoChain`, within `OPEN_S`."""
        await self.close()
        reasons: list[CosineError] = []
        try:
            async with asyncio.timeout(OPEN_S):
                return await self._open(first_sequence, reasons)
        except TimeoutError:
            raise NoChain(str(reasons[-1]) if reasons else "No stages were found in time.") from None

    async def _open(self, first_sequence: int, reasons: list[CosineError]) -> RemoteChain:
        has_looked = False
        busy: dict[str, float] = {}
        while True:
            try:
                found = self._search(busy)
            except NoChain as error:
                reasons.append(error)
                if has_looked:
                    raise
                await self._look()
                has_looked = True
                continue
            # Where there is no way round a busy stage: slots of the chain before may not be free yet.
            waits_s = [busy[one.place.peer_id] for one in found.stages if one.place.peer_id in busy]
            await asyncio.sleep(max(waits_s, default=0.0))
            plan = self._plan(found, first_sequence)
            try:
                # Longer than a dial over a slow link; what takes longer is no place for a chain that is waited for.
                opening = open_chain(self._transport, plan, join_s=4.0)
                self._chain = await self._opened.enter_async_context(opening)
            except ChainLost as error:
                LOG.info("no chain: %s", error)
                reasons.append(error)
                assert error.peer_id is not None
                if error.retry_after_s is not None:
                    busy[error.peer_id] = error.retry_after_s
                else:
                    self._note_failed(error.peer_id)
                continue
            self.numerics, self.pool_tokens, self.found = plan.numerics, plan.pool_tokens, found
            LOG.info("a chain over %s", ", ".join(str(one.place) for one in found.stages))
            return self._chain

    def _plan(self, found: FoundChain, first_sequence: int) -> ChainPlan:
        """The plan of a chain; the first one decides about numerics and pool."""
        records = {record.peer_id: record for record in self._records}
        chosen = [records[one.place.peer_id] for one in found.stages]
        room_tokens = min(record.stage.pool_tokens for record in chosen if record.stage is not None)
        wanted_tokens = min(self._needs.pool_tokens, room_tokens) // PAGE_TOKENS * PAGE_TOKENS
        return ChainPlan(
            places=tuple(one.place for one in found.stages),
            target_digest=self._needs.target_digest,
            numerics=chosen[0].numerics,
            vocab_tokens=self._needs.vocab_tokens,
            pool_tokens=self.pool_tokens or wanted_tokens,
            first_sequence=first_sequence,
        )

    def _search(self, busy: Collection[str] = ()) -> FoundChain:
        """The best chain now, of stages with one numerics; busy ones as the last resort. Raises `NoChain`."""
        now_s = asyncio.get_running_loop().time()
        asked = [
            record
            for record in self._records
            if record.stage is not None
            and not self._is_gone(record, now_s)
            and (self.pool_tokens is not None or record.stage.pool_tokens >= self._needs.least_pool_tokens)
            and record.numerics == (self.numerics or record.numerics)
        ]
        avoided = self._failures.avoided(now_s).union(busy)

        def find(records: Sequence[NodeRecord]) -> FoundChain:
            return find_chain(
                list(map(_sight, records)),
                layers=self._needs.layers,
                head=self._transport.peer_id,
                rtt_s=self._rtt_s,
                avoided=avoided,
            )

        found = []
        for numerics in {record.numerics for record in asked}:
            with suppress(NoChain):
                found.append(find([record for record in asked if record.numerics == numerics]))
        if found:
            return min(found, key=lambda one: one.seconds)
        # Raises with the layers that nobody holds, in whatever numerics.
        find(asked)
        raise NoChain("No stages of one data type hold all layers in order.")

    def _rtt_s(self, one: str, other: str) -> float | None:
        """The distance of two peers, one of whom may be this head: measured, or by the places they announce."""
        head = self._transport.peer_id
        measured_s = self._rtts_s.get(other if one == head else one) if head in (one, other) else None
        if measured_s is not None:
            return measured_s
        known = {record.peer_id: record.coordinate for record in self._records}
        first, second = (self.here() if peer == head else known.get(peer) for peer in (one, other))
        return estimated_rtt_s(first, second)

    def _is_gone(self, record: NodeRecord, now_s: float) -> bool:
        failed_s, sequence = self._failed.get(record.peer_id, (-GONE_S, record.sequence))
        return now_s - failed_s < GONE_S and record.sequence <= sequence

    def _note_failed(self, peer_id: str) -> None:
        now_s = asyncio.get_running_loop().time()
        announced = {record.peer_id: record.sequence for record in self._records}
        self._failed[peer_id] = (now_s, announced.get(peer_id, 0))
        self._failures.note_failed(peer_id, now_s=now_s)

    def _measure(self) -> None:
        """Take in the distances that the chain's own streams have measured."""
        if self._chain is not None:
            self._rtts_s |= self._chain.rtts_s

    async def _look(self) -> None:
        """Look for stages; where nobody answers what is known stays."""
        try:
            found = await self._directory.find(Role.STAGE, self._needs.target_digest.hex())
        except CosineError as error:
            LOG.info("no stages were looked up: %s", error)
            return
        digest = self._needs.target_digest
        self._records = [record for record in found if record.stage is not None and record.target_digest == digest]
        present = {record.peer_id for record in self._records}
        self._rtts_s = {peer_id: rtt_s for peer_id, rtt_s in self._rtts_s.items() if peer_id in present}
        self._failed = {peer_id: failed for peer_id, failed in self._failed.items() if peer_id in present}


def _sight(record: NodeRecord) -> StageSight:
    assert record.stage is not None
    busy = record.stage.busy_permille / 1000
    return StageSight(StagePlace(record.peer_id, record.stage.held), loaded_pass_s(record.pass_us / 1e6, busy=busy))
