"""A head's finder of chains: looks for stages, opens chains over them, and leaves the one in use for a better one.

Theory of operation
-------------------
`ChainFinder` looks for stages every ten seconds and opens the best chain that `known_stages` finds; a stage that
refuses is asked again when it is busy, and else left out. One chain is in use at a time; second chains check it
(`checks`). A stage that failed is not used for a while, and two of which one is at fault are suspected.

`ChainWatch` takes the ended passes of the chain in use (`links`) every `CHECK_S`, and decides:

- If a pass is *stuck* at a stage, the chain is left; that stage and the one before are suspected.
- If delays add up (`StageSpeeds`), the chain is left for one that takes less than half as long.
- If the last stage returns rows without tokens, another one is tried (`doubt`).

A chain is left only if another one exists, and with growing patience, so that a head with a slow line does not
switch chains forever.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.known_stages import ChainNeeds, KnownStages, Measured
from cosine_node.chains.links import ANSWER_S, ChainPlan, EndedPass, StageLinks, StuckPass
from cosine_node.chains.search import FoundChain, NoChain, chain_ways_s
from cosine_node.chains.traces import CHECK_TOKENS
from cosine_node.stages.frames import ChainLost
from cosine_p2p.directory.directory import Directory
from cosine_p2p.transport.base import Transport
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NetworkCoordinate, Role

LOG = logging.getLogger(__name__)
LOOK_S: Final = 10.0
"""Interval of look-ups."""
OPEN_S: Final = 4.5
"""Limit for opening a chain, so that a request without one fails within 5 s."""
PROMPT_BYTES_PER_S: Final = 12.5e6
"""Assumed speed between stages for the length of a prompt's passes: 100 Mbit/s. With the measured speeds of links a
prompt of 2,000 tokens took at most 1.6 % less time, at 10 to 100 Mbit/s over two and three stages."""
JOIN_S: Final = 4.0
"""Limit for a stage's joining: longer than a dial over a slow link."""
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
MAX_DOUBTS: Final = 3
"""Chains left within `PATIENCE_S` because their last stage returned rows, so that a request that no stage can serve
does not delay others for ever."""


class ChainWatch:
    """Watches one chain after the other."""

    def __init__(self, known: KnownStages) -> None:
        self._known = known
        self._token_bytes = known.needs.token_bytes
        self._stuck_s = deque[float](maxlen=MAX_DOUBLINGS)
        self._doubted_s = deque[float](maxlen=MAX_DOUBTS)

    async def watch(self, links: StageLinks, found: FoundChain) -> None:
        """Measure the stages of a chain until it is lost, and leave it if another one is better."""
        speeds, pairs = self._known.speeds, list(pairwise(found.peer_ids))
        parts: list[Measured] = [*found.peer_ids, *pairs]
        for part in parts:
            speeds.begin(part, now_s=_now_s())
        # The times between stages, beyond the network distance, when they were last neighbours.
        expected_s = [speeds.pass_s(pair, now_s=_now_s()) or 0.0 for pair in pairs]
        while not links.lost.is_set():
            await asyncio.sleep(CHECK_S)
            now_s = _now_s()
            for ended in links.times.take_ended():
                self._note_pass(found, ended, expected_s, now_s)
            stuck = links.times.stuck()
            if stuck is not None and now_s - stuck.since_s > self._patience_s(found, stuck, now_s):
                self._leave_stuck(links, found, stuck, now_s)
            elif any(speeds.has_cost_much(part, now_s=now_s) for part in parts):
                self._leave_slow(links, found, now_s)
                for part in parts:
                    speeds.forgive(part, now_s=now_s)

    def _note_pass(self, found: FoundChain, ended: EndedPass, expected_s: list[float], now_s: float) -> None:
        speeds, size_bytes = self._known.speeds, ended.tokens * self._token_bytes
        for stage, at_stage_s in zip(found.stages, ended.at_stage_s, strict=True):
            more_s = self._known.curve(stage).seconds(ended.tokens) - stage.pass_s
            pass_s = max(0.0, at_stage_s - more_s)
            speeds.note(stage.peer_id, pass_s=pass_s, expected_s=stage.pass_s, now_s=now_s)
        for number, pair in enumerate(pairwise(found.peer_ids)):
            between_s = max(0.0, ended.between_s[1 + number] - size_bytes / LINK_BYTES_PER_S)
            speeds.note(pair, pass_s=between_s, expected_s=expected_s[number], now_s=now_s)

    def _patience_s(self, found: FoundChain, stuck: StuckPass, now_s: float) -> float:
        """The seconds that a pass may stay at its present stage."""
        stage_s = max(self._known.curve(found.stages[stage]).seconds(stuck.tokens) for stage in stuck.suspects)
        way_s = stuck.tokens * self._token_bytes / LINK_BYTES_PER_S
        doublings = sum(now_s - stuck_s < PATIENCE_S for stuck_s in self._stuck_s)
        return max(STUCK_S, STUCK_FACTOR * (stage_s + way_s)) * 2.0**doublings

    def answer_s(self, found: FoundChain, tokens: int) -> float:
        """The seconds for which the answer to a pass over `tokens` tokens is awaited."""
        stages_s = sum(self._known.curve(stage).seconds(tokens) for stage in found.stages)
        ways_s = len(found.stages) * tokens * self._token_bytes / LINK_BYTES_PER_S
        return min(max(ANSWER_S, STUCK_FACTOR * (stages_s + ways_s)), MOST_ANSWER_S)

    def _leave_stuck(self, links: StageLinks, found: FoundChain, stuck: StuckPass, now_s: float) -> None:
        suspects = [found.stages[stage] for stage in stuck.suspects]
        peer_ids = [place.peer_id for place in suspects]
        if self._known.has_chain_without(peer_ids, now_s=now_s):
            self._stuck_s.append(now_s)
            self._known.suspicions.note(peer_ids, now_s=now_s)
            links.leave(f"{suspects[-1]}: a pass is stuck there for {now_s - stuck.since_s:.1f} s.")

    def _leave_slow(self, links: StageLinks, found: FoundChain, now_s: float) -> None:
        seconds = self._known.seconds(found, now_s=now_s)
        with suppress(NoChain):
            best = self._known.best(now_s)
            if best.seconds <= BETTER * seconds:
                links.leave(f"A pass takes {seconds:.3f} s, and {best.seconds:.3f} s over other stages.")

    def doubt(self, links: StageLinks) -> bool:
        """Leave a chain as its last stage returned a row; False without another, or after `MAX_DOUBTS`."""
        now_s, last = _now_s(), links.plan.places[-1]
        doubts = sum(now_s - at_s < PATIENCE_S for at_s in self._doubted_s)
        if doubts >= MAX_DOUBTS or not self._known.has_chain_without([last.peer_id], now_s=now_s):
            return False
        self._doubted_s.append(now_s)
        self._known.suspicions.note([last.peer_id], now_s=now_s)
        links.leave(f"{last}: it gave a row back without tokens.")
        return True


class ChainFinder:
    """Opens chains over the stages of a target, one at a time. `run` looks for stages until cancelled."""

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        needs: ChainNeeds,
        *,
        here: Callable[[], NetworkCoordinate | None] = lambda: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`here` returns the head's coordinate; `chance` is uniform in [0, 1)."""
        self._transport = transport
        self._directory = directory
        self.needs = needs
        self.known = KnownStages(needs, head=transport.peer_id, here=here, chance=chance)
        self.disputes = self.known.disputes
        self.watch = ChainWatch(self.known)
        self.token_s = needs.token_bytes / PROMPT_BYTES_PER_S
        self.found: FoundChain | None = None
        self.links: StageLinks | None = None
        """The chain in use."""
        self._spare_tokens = 0
        self._opened = AsyncExitStack()

    async def run(self) -> None:
        """Look for stages until cancelled."""
        while True:
            await self._look()
            self._measure()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """End the chain in use, if there is one."""
        links = self.links
        if links is not None and len(links.suspects) == 1:
            self.known.note_failed(links.suspects[0], now_s=_now_s())
        elif links is not None:
            self.known.suspicions.note(links.suspects, now_s=_now_s())
        self._measure()
        self.links = None
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()

    async def open(self, *, first_sequence: int) -> StageLinks:
        """Open another chain instead of the present one, within `OPEN_S`. Raises `NoChain`."""
        await self.close()
        reasons: list[CosineError] = []
        try:
            async with asyncio.timeout(OPEN_S):
                return await self._open(first_sequence, reasons)
        except TimeoutError:
            raise NoChain(str(reasons[-1]) if reasons else "No stages were found in time.") from None

    async def _open(self, first_sequence: int, reasons: list[CosineError]) -> StageLinks:
        has_looked = False
        busy: dict[str, float] = {}
        while True:
            try:
                found = self.known.best(_now_s(), busy=busy)
            except NoChain as error:
                reasons.append(error)
                if has_looked:
                    raise
                await self._look()
                has_looked = True
                continue
            # The chain needs a busy stage; the slots of the previous chain may not be free yet.
            await asyncio.sleep(max((busy[one] for one in found.peer_ids if one in busy), default=0.0))
            plan = self._plan(found, self._pool_tokens(found), first_sequence=first_sequence)
            try:
                links = await self._opened.enter_async_context(self._opening(found, plan))
            except ChainLost as error:
                LOG.info("no chain: %s", error)
                reasons.append(error)
                if error.peer_id is not None and error.retry_after_s is not None:
                    busy[error.peer_id] = error.retry_after_s
                self._note_lost(error)
                continue
            self.known.settle(plan.numerics, plan.pool_tokens)
            self.links, self.found = links, found
            LOG.info("a chain over %s", ", ".join(map(str, links.plan.places)))
            self._opened.callback(asyncio.ensure_future(self.watch.watch(links, found)).cancel)
            return links

    def doubt(self) -> bool:
        """Leave the chain as its last stage returned a row without tokens; False if there is no other."""
        return self.links is not None and self.watch.doubt(self.links)

    def curves(self, whole: CostCurve) -> tuple[CostCurve, ...]:
        """The cost of a pass at each stage of the chain in use, of which `whole` is the measured cost.

        Each stage reports the cost of one token; the measured cost of further tokens is divided in proportion.
        """
        assert self.found is not None, "a chain is in use"
        alone_s = [stage.pass_s for stage in self.found.stages]
        more = [(tokens, seconds - whole.seconds(1)) for tokens, seconds in whole.points]
        shares = [stage_s / sum(alone_s) if sum(alone_s) else 1 / len(alone_s) for stage_s in alone_s]
        return tuple(
            CostCurve(tuple((tokens, stage_s + share * more_s) for tokens, more_s in more))
            for stage_s, share in zip(alone_s, shares, strict=True)
        )

    def _pool_tokens(self, found: FoundChain) -> int:
        """The size of a chain's pool; the first chain determines it."""
        room_tokens = min(self.known.room_tokens(found.peer_ids))
        wanted_tokens = _whole_pages(min(self.needs.pool_tokens, room_tokens))
        # Leave room for a second chain that checks this one over shared stages.
        less_tokens = _whole_pages(room_tokens - min(room_tokens // 4, CHECK_TOKENS))
        if less_tokens >= self.needs.least_pool_tokens:
            wanted_tokens = min(wanted_tokens, less_tokens)
        pool_tokens = self.known.pool_tokens or wanted_tokens
        self._spare_tokens = max(0, room_tokens - pool_tokens)
        return pool_tokens

    def _plan(self, found: FoundChain, pool_tokens: int, *, first_sequence: int = 0) -> ChainPlan:
        ways_s = chain_ways_s(found.peer_ids, head=self._transport.peer_id, rtt_s=self.known.known_rtt_s)
        return ChainPlan(
            places=found.stages,
            target_digest=self.needs.target_digest,
            numerics=self.known.numerics or self.known.numerics_of(found),
            vocab_tokens=self.needs.vocab_tokens,
            pool_tokens=pool_tokens,
            first_sequence=first_sequence,
            ways_s=ways_s[:-1],
        )

    def _opening(self, found: FoundChain, plan: ChainPlan) -> AbstractAsyncContextManager[StageLinks]:
        return StageLinks.opened(self._transport, plan, answer_s=partial(self.watch.answer_s, found), join_s=JOIN_S)

    @asynccontextmanager
    async def second(
        self, *, pool_tokens: int, unlike: Collection[str], without: Collection[str] = ()
    ) -> AsyncIterator[StagedEngine]:
        """An engine over a second chain, with a pool of at most `pool_tokens`.

        The chain uses as few peers of `unlike` as possible, none of `without`, and random others, so that newcomers
        are checked as well. Raises `NoChain`, also if no other stage holds any layers, and `ChainLost`.
        """
        found = self.known.best(_now_s(), unlike=unlike, without=without)
        others = set(found.peer_ids).difference(unlike)
        if not others and not without:
            raise NoChain("No other stage holds any of these layers.")
        rooms = self.known.room_tokens(others)
        if len(others) < len(found.stages):
            rooms.append(self._spare_tokens)
        room_tokens = min(pool_tokens, _whole_pages(min(rooms)))
        if not room_tokens:
            raise NoChain("Stages that others do not replace have no room for a second chain.")
        try:
            async with self._opening(found, self._plan(found, room_tokens)) as links:
                yield StagedEngine(links, context_tokens=room_tokens)
        except ChainLost as error:
            self._note_lost(error)
            raise

    def _note_lost(self, error: ChainLost) -> None:
        if error.peer_id is not None and error.retry_after_s is None:
            self.known.note_failed(error.peer_id, now_s=_now_s())

    def _measure(self) -> None:
        """Store the round-trip times that the chain's streams have measured."""
        if self.links is not None:
            self.known.note_rtts(self.links.rtts_s)

    async def _look(self) -> None:
        """Look for stages; keep the known ones if the directory does not answer."""
        try:
            self.known.see(await self._directory.find(Role.STAGE, self.needs.target_digest.hex()))
        except CosineError as error:
            LOG.info("no stages were looked up: %s", error)


def _whole_pages(tokens: int) -> int:
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def _now_s() -> float:
    return asyncio.get_running_loop().time()
