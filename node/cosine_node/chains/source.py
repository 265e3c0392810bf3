"""Discovery of stages for a head, and the chains that it opens over them.

Theory of operation
-------------------
A head opens the chain with the least expected time, by distances and by measured or announced pass times. While a
chain is in use `_watch` monitors its passes at each stage (`pass_times`):

- If a pass is *stuck* at a stage, the chain is left; that stage and the one before are avoided for a while.
- If delays add up (`stage_speeds`), the chain is left for one that takes less than half as long.
- If the last stage returns rows without tokens, another one is tried (`doubt`).
- If a stage says that it got bad activations, it and the one before are avoided for a while.
- A stage that breaks the protocol or is gone is avoided.

A chain is left only if another one exists, and with growing patience, so that a head with a slow line does not
switch chains for ever.
"""

import asyncio
import logging
import math
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median_low
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.chains.checks import CHECK_TOKENS
from cosine_node.chains.disputes import Disputes
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.pass_times import EndedPass, StuckPass
from cosine_node.chains.remote_chain import ANSWER_S, ChainPlan, RemoteChain, open_chain
from cosine_node.chains.search import (
    USUAL_RTT_S,
    FoundChain,
    NoChain,
    StagePlace,
    StageSight,
    chain_seconds,
    chain_ways_s,
    find_chain,
    loaded_pass_s,
)
from cosine_node.chains.stage_speeds import SHARED, LinkSpeeds, Measured, StageSpeeds, Suspicions
from cosine_node.stages.coverage import unheld
from cosine_node.stages.operations import ChainLost
from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_p2p.transport.base import Transport
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NetworkCoordinate, NodeRecord, Role

LOG = logging.getLogger(__name__)
OPEN_S: Final = 4.5
"""Limit for opening a chain, so that a request without one fails within 5 s."""
GONE_S: Final = 10.0
"""Time for which a failed stage is not used, unless it has announced itself since. Afterwards it is a last
resort."""

CHECK_S: Final = 0.25
"""Interval at which a chain is checked: a small part of `STUCK_S`."""
STUCK_S: Final = 1.5
"""A pass that takes this much longer at one stage than expected is stuck. A client waits 4 s for tokens
(docs/decisions/0025), in which the next chain is set up and fed; heartbeats come each second."""
STUCK_FACTOR: Final = 5.0
"""Longer passes are stuck after this multiple of the expected time, as with verifiers."""
MOST_ANSWER_S: Final = 600.0
"""Limit of the wait for an answer, whatever stages announce: `STUCK_FACTOR` times a pass of two minutes."""
LINK_BYTES_PER_S: Final = 0.625e6
"""Assumed speed between stages: half of a slow uplink of 10 Mbit/s, which other streams use, too. With the whole of
such a line, a prompt was restarted over another chain that was no faster."""
BETTER: Final = 0.5
"""Because of delays a chain is left only for one that takes this part of its time, since tokens are fed again."""
PATIENCE_S: Final = 60.0
MAX_DOUBLINGS: Final = 5
"""Each chain that got stuck within `PATIENCE_S` doubles the patience with the next, up to 48 s: if all stages seem
stuck, the cause is the head's own line, or passes do take that long."""
EXCLUDED: Final = 1 << 20
"""More than all suspicions weigh together."""
MAX_DOUBTS: Final = 3
"""Chains left within `PATIENCE_S` because their last stage returned rows, so that a request that no stage can serve
does not delay others for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainNeeds:
    """The target of a head's chains, the pool it wants and needs, and the size of a token's activations."""

    target_digest: bytes
    layers: int
    vocab_tokens: int
    pool_tokens: int
    least_pool_tokens: int
    token_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SecondChain:
    """A chain beside the one in use, and an engine over it; call `close` at the end."""

    chain: RemoteChain
    engine: ChainEngine
    found: FoundChain
    close: Callable[[], Awaitable[None]]


class ChainSource:
    """Opens chains over the stages of a target, one at a time. `run` looks for stages until cancelled.

    The first chain determines the numerics and pool size of all later ones.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        needs: ChainNeeds,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._needs = needs
        self.here: Callable[[], NetworkCoordinate | None] = lambda: None
        """Returns the head's coordinate."""
        self.disputes = Disputes()
        self._speeds = StageSpeeds()
        self._suspicions = Suspicions()
        self._failures = PeerFailures()
        self._chance = chance
        self._spare_tokens = 0
        self._links = LinkSpeeds()
        self.numerics: str | None = None
        self.pool_tokens: int | None = None
        self.found: FoundChain | None = None
        self._records: list[NodeRecord] = []
        self._rtts_s: dict[str, float] = {}
        self._stuck_s = deque[float](maxlen=MAX_DOUBLINGS)
        self._doubted_s = deque[float](maxlen=MAX_DOUBTS)
        self._failed: dict[str, tuple[float, int]] = {}
        self._chain: RemoteChain | None = None
        self._opened = AsyncExitStack()

    async def run(self) -> None:
        """Look for stages every ten seconds until cancelled."""
        while True:
            await self._look()
            self._measure()
            await asyncio.sleep(10.0)

    async def close(self) -> None:
        """End the chain, if there is one."""
        chain = self._chain
        if chain is not None and chain.failed_peer is not None:
            self._note_failed(chain.failed_peer)
        elif chain is not None and chain.suspects:
            self._avoid(chain.suspects)
        self._measure()
        self._chain = None
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()

    async def open(self, *, first_sequence: int) -> RemoteChain:
        """Open another chain instead of the present one, within `OPEN_S`. Raises `NoChain`."""
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
            # The chain needs a busy stage; the slots of the previous chain may not be free yet.
            waits_s = [busy[one.place.peer_id] for one in found.stages if one.place.peer_id in busy]
            await asyncio.sleep(max(waits_s, default=0.0))
            plan = self._plan(found, first_sequence)
            try:
                self._chain = await self._opened.enter_async_context(self._opening(found, plan))
            except ChainLost as error:
                LOG.info("no chain: %s", error)
                reasons.append(error)
                assert error.peer_id is not None
                if error.retry_after_s is not None:
                    busy[error.peer_id] = error.retry_after_s
                else:
                    self._note_failed(error.peer_id)
                continue
            self.numerics, self.pool_tokens = plan.numerics, plan.pool_tokens
            self._begin(self._chain, found)
            return self._chain

    async def go_on_over(self, spare: SecondChain) -> bool:
        """Use a chain that was kept warm instead of the present one; False if it is unfit."""
        await self.close()
        now_s = asyncio.get_running_loop().time()
        bad = self._doubted(now_s)
        peer_ids = spare.found.peer_ids
        is_fit = bad.isdisjoint(peer_ids) and self.disputes.are_free(peer_ids, now_s=now_s)
        if spare.chain.lost.is_set() or not is_fit:
            return False
        self._opened.push_async_callback(spare.close)
        self._chain = spare.chain
        self._begin(spare.chain, spare.found)
        return True

    def _doubted(self, now_s: float) -> set[str]:
        """The stages that failed recently or are suspected of a fault."""
        return {*self._failures.avoided(now_s), *self._suspicions.weights(now_s=now_s)}

    def _begin(self, chain: RemoteChain, found: FoundChain) -> None:
        """Begin to use and watch a chain."""
        self.found = found
        chain.note_came = partial(self._note_came, chain)
        LOG.info("a chain over %s", ", ".join(str(one.place) for one in found.stages))
        for what in _measured(found):
            self._speeds.begin(what, now_s=asyncio.get_running_loop().time())
        watching = asyncio.ensure_future(self._watch(chain, found))
        self._opened.callback(watching.cancel)

    async def _watch(self, chain: RemoteChain, found: FoundChain) -> None:
        """Measure the stages of a chain until it is lost, and leave it if another one is better."""
        expected_s = {pair: self._between_s(*pair) for pair in pairwise(found.peer_ids)}
        while not chain.lost.is_set():
            await asyncio.sleep(CHECK_S)
            now_s = asyncio.get_running_loop().time()
            for ended in chain.times.take_ended():
                self._note_pass(found, ended, expected_s, now_s)
            stuck = chain.times.stuck()
            if stuck is not None and now_s - stuck.since_s > self._patience_s(found, stuck, now_s):
                self._leave_stuck(chain, found, stuck, now_s)
            elif any(self._speeds.has_cost_much(what, now_s=now_s) for what in _measured(found)):
                self._leave_slow(chain, found, now_s)

    def _note_pass(
        self, found: FoundChain, ended: EndedPass, expected_s: Mapping[tuple[str, str], float], now_s: float
    ) -> None:
        for stage, at_stage_s in zip(found.stages, ended.at_stage_s, strict=True):
            more_s = self._curve(stage).seconds(ended.tokens) - stage.pass_s
            pass_s = max(0.0, at_stage_s - more_s)
            self._speeds.note(stage.place.peer_id, pass_s=pass_s, expected_s=stage.pass_s, now_s=now_s)
        for pair, between_s in zip(pairwise(found.peer_ids), ended.between_s[1:], strict=True):
            way_s = ended.tokens * self._needs.token_bytes / LINK_BYTES_PER_S
            self._speeds.note(pair, pass_s=max(0.0, between_s - way_s), expected_s=expected_s[pair], now_s=now_s)

    def _note_came(self, chain: RemoteChain, stage: int, feed: int, seconds: float) -> None:
        size_bytes = chain.times.tokens(feed) * self._needs.token_bytes
        pair = chain.stages[stage - 1], chain.stages[stage]
        self._links.note(pair, size_bytes=size_bytes, seconds=seconds, now_s=asyncio.get_running_loop().time())

    def token_s(self, found: FoundChain) -> float:
        """The seconds that a token's activations take over the slowest known link between two stages."""
        now_s = asyncio.get_running_loop().time()
        rates = (self._links.bytes_per_s(pair, now_s=now_s) for pair in pairwise(found.peer_ids))
        return self._needs.token_bytes / min(rates, default=math.inf)

    def _between_s(self, one: str, other: str) -> float:
        """The measured time between two stages, beyond the network distance, when they were last neighbours."""
        return self._speeds.pass_s((one, other), now_s=asyncio.get_running_loop().time()) or 0.0

    def _curve(self, stage: StageSight) -> CostCurve:
        """The announced cost of passes at a stage; at most that of one pass for each token."""
        offers = (record.stage for record in self._records if record.peer_id == stage.place.peer_id)
        offer = next(offers, None)
        if offer is None or offer.wide_tokens < 2:
            return CostCurve(((1, stage.pass_s),))
        wide_s = min(max(stage.pass_s, offer.wide_pass_us / 1e6), offer.wide_tokens * stage.pass_s)
        return CostCurve(((1, stage.pass_s), (offer.wide_tokens, wide_s)))

    def _patience_s(self, found: FoundChain, stuck: StuckPass, now_s: float) -> float:
        """The seconds that a pass may stay at its present stage."""
        stage_s = max(self._curve(found.stages[stage]).seconds(stuck.tokens) for stage in stuck.suspects)
        way_s = stuck.tokens * self._needs.token_bytes / LINK_BYTES_PER_S
        doublings = sum(now_s - stuck_s < PATIENCE_S for stuck_s in self._stuck_s)
        return max(STUCK_S, STUCK_FACTOR * (stage_s + way_s)) * 2.0**doublings

    def answer_s(self, found: FoundChain, tokens: int) -> float:
        """The seconds for which the answer to a pass over `tokens` tokens is awaited."""
        stages_s = sum(self._curve(stage).seconds(tokens) for stage in found.stages)
        ways_s = len(found.stages) * tokens * self._needs.token_bytes / LINK_BYTES_PER_S
        return min(max(ANSWER_S, STUCK_FACTOR * (stages_s + ways_s)), MOST_ANSWER_S)

    def _leave_stuck(self, chain: RemoteChain, found: FoundChain, stuck: StuckPass, now_s: float) -> None:
        suspects = [found.stages[stage].place for stage in stuck.suspects]
        peer_ids = [place.peer_id for place in suspects]
        if self._has_chain_without(peer_ids):
            self._stuck_s.append(now_s)
            self._avoid(peer_ids)
            chain.leave(f"{suspects[-1]}: a pass is stuck there for {now_s - stuck.since_s:.1f} s.")

    def _leave_slow(self, chain: RemoteChain, found: FoundChain, now_s: float) -> None:
        records = {record.peer_id: record for record in self._records}
        floor_s = self._stranger_layer_s()
        present = [
            self._sight(records[one.place.peer_id], floor_s) if one.place.peer_id in records else one
            for one in found.stages
        ]
        seconds = chain_seconds(present, head=self._transport.peer_id, rtt_s=self._rtt_s)
        with suppress(NoChain):
            best = self._search()
            if best.seconds <= BETTER * seconds:
                chain.leave(f"A pass takes {seconds:.3f} s, and {best.seconds:.3f} s over other stages.")
        for what in _measured(found):
            self._speeds.forgive(what, now_s=now_s)

    def doubt(self) -> bool:
        """Leave the chain as its last stage returned a row; False without another, or after `MAX_DOUBTS`."""
        now_s = asyncio.get_running_loop().time()
        chain, found = self._chain, self.found
        doubts = sum(now_s - at_s < PATIENCE_S for at_s in self._doubted_s)
        if chain is None or found is None or doubts >= MAX_DOUBTS:
            return False
        last = found.stages[-1].place
        if not self._has_chain_without([last.peer_id]):
            return False
        self._doubted_s.append(now_s)
        self._avoid([last.peer_id])
        chain.leave(f"{last}: it gave a row back without tokens.")
        return True

    def _has_chain_without(self, peer_ids: Collection[str]) -> bool:
        """True if some chain does without at least one of these peers."""
        with suppress(NoChain):
            best = self._search(excluded=peer_ids)
            return not set(best.peer_ids).issuperset(peer_ids)
        return False

    def _avoid(self, peer_ids: Collection[str]) -> None:
        """Suspect these peers, one of whom is at fault."""
        self._suspicions.note(peer_ids, now_s=asyncio.get_running_loop().time())

    def _plan(self, found: FoundChain, first_sequence: int) -> ChainPlan:
        """The plan of a chain; the first one determines numerics and pool."""
        records = {record.peer_id: record for record in self._records}
        chosen = [records[peer_id] for peer_id in found.peer_ids]
        room_tokens = min(record.stage.pool_tokens for record in chosen if record.stage is not None)
        wanted_tokens = min(self._needs.pool_tokens, room_tokens) // PAGE_TOKENS * PAGE_TOKENS
        # Leave room for a second chain that checks this one over shared stages.
        less_tokens = (room_tokens - min(room_tokens // 4, CHECK_TOKENS)) // PAGE_TOKENS * PAGE_TOKENS
        if less_tokens >= self._needs.least_pool_tokens:
            wanted_tokens = min(wanted_tokens, less_tokens)
        self._spare_tokens = max(0, room_tokens - (self.pool_tokens or wanted_tokens))
        return self._plan_over(
            found, chosen[0].numerics, self.pool_tokens or wanted_tokens, first_sequence=first_sequence
        )

    def _plan_over(
        self, found: FoundChain, numerics: str, pool_tokens: int, *, first_sequence: int = 0
    ) -> ChainPlan:
        ways_s = chain_ways_s(found.peer_ids, head=self._transport.peer_id, rtt_s=self._known_rtt_s)
        return ChainPlan(
            places=tuple(one.place for one in found.stages),
            target_digest=self._needs.target_digest,
            numerics=numerics,
            vocab_tokens=self._needs.vocab_tokens,
            pool_tokens=pool_tokens,
            first_sequence=first_sequence,
            ways_s=ways_s[:-1],
        )

    def _opening(self, found: FoundChain, plan: ChainPlan) -> AbstractAsyncContextManager[RemoteChain]:
        # Longer than a dial over a slow link.
        return open_chain(self._transport, plan, answer_s=partial(self.answer_s, found), join_s=4.0)

    @asynccontextmanager
    async def second(
        self, *, pool_tokens: int, unlike: Collection[str], without: Collection[str] = ()
    ) -> AsyncIterator[tuple[RemoteChain, ChainEngine]]:
        """A chain beside the one in use, and an engine over it, with a pool of at most `pool_tokens`.

        It uses as few peers of `unlike` as possible, none of `without`, and random others, so that newcomers are
        checked as well. Raises `NoChain`, also if nobody else holds any layers, and `ChainLost`.
        """
        found = self._search(unlike=unlike, without=without)
        room_tokens = min(pool_tokens, self._room_beside(found, unlike, is_any=bool(without)))
        opened = await self._open_second(found, room_tokens)
        try:
            yield opened.chain, opened.engine
        except ChainLost as error:
            self._note_lost(error)
            raise
        finally:
            await opened.close()

    async def spare(self) -> SecondChain:
        """A second chain with an equal pool and few common stages. Raises `NoChain` or `ChainLost`."""
        assert self.found is not None and self.pool_tokens is not None, "beside a chain"
        now_s = asyncio.get_running_loop().time()
        used = self.found.peer_ids
        found = self._search(excluded=used, without=self._doubted(now_s).difference(used))
        if self._room_beside(found, used) < self.pool_tokens:
            raise NoChain("Stages have no room for a second chain as large as the first.")
        return await self._open_second(found, self.pool_tokens)

    def _room_beside(self, found: FoundChain, used: Collection[str], *, is_any: bool = False) -> int:
        """The largest pool of a second chain in tokens. Raises `NoChain` without other stages, unless `is_any`."""
        others = set(found.peer_ids).difference(used)
        if not others and not is_any:
            raise NoChain("Nobody else holds any of these layers.")
        offers = [record.stage for record in self._records if record.peer_id in others]
        rooms = [offer.pool_tokens for offer in offers if offer is not None]
        if len(others) < len(found.stages):
            rooms.append(self._spare_tokens)
        room_tokens = min(rooms) // PAGE_TOKENS * PAGE_TOKENS
        if not room_tokens:
            raise NoChain("Stages that others do not replace have no room for a second chain.")
        return room_tokens

    async def _open_second(self, found: FoundChain, pool_tokens: int) -> SecondChain:
        assert self.numerics is not None, "beside a chain"
        plan = self._plan_over(found, self.numerics, pool_tokens)
        async with AsyncExitStack() as opening:
            try:
                chain = await opening.enter_async_context(self._opening(found, plan))
            except ChainLost as error:
                self._note_lost(error)
                raise
            engine = ChainEngine(
                chain,
                PagePool(tokens=pool_tokens),
                vocab_tokens=self._needs.vocab_tokens,
                context_tokens=pool_tokens,
                numerics=self.numerics,
            )
            return SecondChain(chain, engine, found, opening.pop_all().aclose)

    def _note_lost(self, error: ChainLost) -> None:
        if error.peer_id is not None and error.retry_after_s is None:
            self._note_failed(error.peer_id)

    def _search(
        self,
        busy: Collection[str] = (),
        *,
        unlike: Collection[str] = (),
        without: Collection[str] = (),
        excluded: Collection[str] = (),
    ) -> FoundChain:
        """The best chain of stages with one numerics; busy ones are the last resort. Raises `NoChain`.

        With `unlike` it is a random chain over as few of these peers as possible. `excluded` peers are avoided more
        than any suspect.
        """
        floor_s = self._stranger_layer_s()
        now_s = asyncio.get_running_loop().time()
        asked = [
            record
            for record in self._records
            if record.stage is not None
            and not self._is_gone(record, now_s)
            and (self.pool_tokens is not None or record.stage.pool_tokens >= self._needs.least_pool_tokens)
            and record.numerics == (self.numerics or record.numerics)
        ]
        avoided = Counter(self._suspicions.weights(now_s=now_s))
        avoided.update(dict.fromkeys([*self._failures.avoided(now_s), *busy, *unlike], SHARED))
        avoided.update(dict.fromkeys(excluded, EXCLUDED))
        aside = self.disputes.set_aside(now_s).union(without)
        if unlike:
            # A failed stage would only delay a check.
            aside |= self._failures.avoided(now_s)
        peers = [record.peer_id for record in asked]
        levels = {} if unlike else self.disputes.levels(peers, now_s=now_s)

        def find(records: Sequence[NodeRecord], *, apart: Collection[frozenset[str]]) -> FoundChain:
            sights = [self._sight(record, floor_s) for record in records]
            return find_chain(
                [replace(sight, pass_s=self._chance()) for sight in sights] if unlike else sights,
                layers=self._needs.layers,
                head=self._transport.peer_id,
                rtt_s=(lambda one, other: 0.0) if unlike else self._rtt_s,
                avoided=avoided,
                standing=levels,
                apart=apart,
            )

        found = []
        believed = [record for record in asked if record.peer_id not in aside]
        for numerics in {record.numerics for record in believed}:
            with suppress(NoChain):
                same = [record for record in believed if record.numerics == numerics]
                found.append(find(same, apart=self.disputes.apart(now_s)))
        if found:
            return min(found, key=lambda one: one.seconds)
        # Raises with the layers that nobody holds in any numerics.
        find(asked, apart=())
        raise NoChain(self._why_not(believed))

    def _why_not(self, believed: Sequence[NodeRecord]) -> str:
        """The reason why there is no chain although all layers are held."""
        for dispute in self.disputes.open(asyncio.get_running_loop().time()):
            return f"{dispute}, and nobody else holds them."
        held = [record.stage.held for record in believed if record.stage is not None]
        if gaps := unheld(held, layers=self._needs.layers):
            names = " and ".join(map(str, gaps))
            return f"Layers {names} of {self._needs.layers} are held by stages alone that were found wrong."
        return "No stages of one data type hold all layers in order."

    def _rtt_s(self, one: str, other: str) -> float | None:
        """The round-trip time of two peers, with the measured extra time if they were neighbours in a chain."""
        known_s, between_s = self._known_rtt_s(one, other), self._between_s(one, other)
        return (USUAL_RTT_S if known_s is None else known_s) + 2 * between_s if between_s else known_s

    def _known_rtt_s(self, one: str, other: str) -> float | None:
        """The round-trip time of two peers, one of whom may be this head: measured, or by their coordinates."""
        head = self._transport.peer_id
        measured_s = self._rtts_s.get(other if one == head else one) if head in (one, other) else None
        if measured_s is not None:
            return measured_s
        known = {record.peer_id: record.coordinate for record in self._records}
        first, second = (self.here() if peer == head else known.get(peer) for peer in (one, other))
        return estimated_rtt_s(first, second)

    def _stranger_layer_s(self) -> float:
        """The least assumed time of a layer at unmeasured stages: 0, or once a stage has lied, the median."""
        offers = [(record.pass_us / 1e6, record.stage) for record in self._records]
        layers_s = [pass_s / len(offer.held) for pass_s, offer in offers if offer is not None]
        is_deceived = self._speeds.is_deceived(now_s=asyncio.get_running_loop().time())
        return median_low(layers_s) if is_deceived and layers_s else 0.0

    def _sight(self, record: NodeRecord, stranger_layer_s: float) -> StageSight:
        """A stage, with its measured or else announced pass time."""
        assert record.stage is not None
        measured_s = self._speeds.pass_s(record.peer_id, now_s=asyncio.get_running_loop().time())
        busy = record.stage.busy_permille / 1000
        announced_s = loaded_pass_s(record.pass_us / 1e6, busy=busy)
        # If distances were overestimated, the measured time is 0.
        pass_s = measured_s or max(announced_s, stranger_layer_s * len(record.stage.held))
        return StageSight(StagePlace(record.peer_id, record.stage.held), pass_s)

    def _is_gone(self, record: NodeRecord, now_s: float) -> bool:
        failed_s, sequence = self._failed.get(record.peer_id, (-GONE_S, record.sequence))
        return now_s - failed_s < GONE_S and record.sequence <= sequence

    def _note_failed(self, peer_id: str) -> None:
        now_s = asyncio.get_running_loop().time()
        announced = {record.peer_id: record.sequence for record in self._records}
        self._failed[peer_id] = (now_s, announced.get(peer_id, 0))
        self._failures.note_failed(peer_id, now_s=now_s)

    def _measure(self) -> None:
        """Store the round-trip times that the chain's streams have measured."""
        if self._chain is not None:
            self._rtts_s |= self._chain.rtts_s

    async def _look(self) -> None:
        """Look for stages; keep the known ones if the directory does not answer."""
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


def _measured(found: FoundChain) -> list[Measured]:
    """The measured parts of a chain: its stages, and the links between them."""
    return [*found.peer_ids, *pairwise(found.peer_ids)]
