"""A head's checks of its stages: sequences are computed again over another chain and compared.

Theory of operation
-------------------
Stages report on every pass soon after it, so that a probe does not reveal a check. When a sequence ends, a draw by
standing decides whether it is checked (`disputes`). One check at a time runs in the background: the sequence is fed
to another chain in one prefill, and the two traces are compared (`traces`). At a contradiction a third holder of
the layers decides, or else the standing of the two sides. The chain in use is left if it contains a liar.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from cosine_engine.base import Row
from cosine_engine.choice_gap import CANDIDATES
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.finder import ChainFinder
from cosine_node.chains.links import StageLinks
from cosine_node.chains.search import NoChain
from cosine_node.chains.traces import (
    CHECK_TOKENS,
    ChainTrace,
    Contradiction,
    Witness,
    WitnessedPass,
    WitnessedSequence,
    WitnessedToken,
    agrees,
    contradiction,
    told_of,
    trace_of,
)
from cosine_node.stages.frames import ChainLost
from cosine_node.stages.proof import VALUE_BYTES
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import CosineError
from cosine_protocol.stage import KEPT_TOKENS, MAX_FEED_TOKENS, MAX_PROBE_PARTS, PROBE_SEED_BYTES, FeedPart, Probe

LOG = logging.getLogger(__name__)
PROBED_TOKENS: Final = 64
"""Tokens that one probe covers: a quarter of what stages keep, as more are fed meanwhile."""
PIECE_TOKENS: Final = 64
"""Tokens of a pass of a check, all scored by the last stage, as in audits."""
CHECK_S: Final = 60.0
"""Limit of a check, longer than clients wait for audits."""
MAX_THIRDS: Final = 2
"""Further chains that are tried to decide a contradiction."""


class ChainChecks:
    """Checks the chains of one head. `chance` is uniform in [0, 1), `draw` returns random bytes."""

    def __init__(
        self,
        finder: ChainFinder,
        *,
        chance: Callable[[], float] = random.random,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.disputes = finder.disputes
        self._finder = finder
        self._chance = chance
        self._draw = draw
        self._links: StageLinks | None = None
        self._witness: Witness | None = None
        self._unprobed: list[WitnessedPass] = []
        self._checking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.checked = 0
        """The number of checks that have ended with a finding."""

    def begin(self, links: StageLinks) -> Witness | None:
        """Begin to check the chain in use; return its witness, None if its numerics cannot be compared."""
        self._links, self._witness, self._unprobed = links, None, []
        if links.plan.numerics in VALUE_BYTES:
            on_answer, on_end = partial(self._note_answered, links), partial(self._note_ended, links)
            self._witness = Witness(first_feed=links.fed, on_answer=on_answer, on_end=on_end)
        return self._witness

    async def close(self) -> None:
        """Cancel all checks under way."""
        await end_all(self._tasks)

    async def idle(self) -> None:
        """Wait until no check is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def why_not_judge(self) -> str | None:
        """The reason why no verdict is possible over the present chain; None if one is."""
        stages = self._links.stages if self._links is not None else ()
        if not self.disputes.are_free(stages, now_s=_now_s()):
            return "stages contradict each other"
        if not self.disputes.are_checked(stages, now_s=_now_s()):
            return "not all stages were found right yet"
        return None

    def _note_answered(self, links: StageLinks, fed: WitnessedPass) -> None:
        self._unprobed.append(fed)
        if sum(each.tokens for each in self._unprobed) >= PROBED_TOKENS:
            self._begin(self._probe(links, self._taken()))

    def _taken(self) -> list[WitnessedPass]:
        taken, self._unprobed = self._unprobed, []
        return taken

    def _note_ended(self, links: StageLinks, sequence: WitnessedSequence) -> None:
        if links is not self._links or (self._checking is not None and not self._checking.done()):
            return
        if self._chance() < self.disputes.check_chance(links.stages, now_s=_now_s()):
            self._checking = self._begin(self._check(links, sequence, self._taken()))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _probe(self, links: StageLinks, unprobed: Sequence[WitnessedPass]) -> None:
        """Probe passes that were not probed yet."""
        batch: list[WitnessedPass] = []
        try:
            for fed in unprobed:
                if len(batch) == MAX_PROBE_PARTS or sum(each.tokens for each in (*batch, fed)) > MAX_FEED_TOKENS:
                    await self._ask(links, batch)
                    batch = []
                batch.append(fed)
            await self._ask(links, batch)
        except ChainLost as lost:
            LOG.info("stages were not asked what they computed: %s", lost)

    async def _ask(self, links: StageLinks, batch: Sequence[WitnessedPass]) -> None:
        if not batch:
            return
        seed = self._draw(PROBE_SEED_BYTES)
        said = await links.probe(Probe(seed, tuple(FeedPart(fed.number, 0, fed.tokens) for fed in batch)))
        for number, fed in enumerate(batch):
            fed.seed = seed
            fed.told = tuple(
                None if traces is None else told_of(traces[number], tokens=fed.tokens) for traces in said
            )
        self._see_that_stages_tell(links, batch)

    def _see_that_stages_tell(self, links: StageLinks, batch: Sequence[WitnessedPass]) -> None:
        """Leave the chain if a stage does not report on a pass that it must keep."""
        if self._witness is None or links is not self._links:
            return
        for fed in batch:
            if self._witness.fed_tokens - fed.end + fed.tokens > KEPT_TOKENS:
                continue
            for place, told in zip(links.plan.places, fed.told, strict=True):
                if told is None:
                    continue
                entered, left = told
                if (entered is None and not place.layers.is_first) or (left is None and not place.layers.is_last):
                    links.leave(f"{place}: it does not report what it has computed.", place.peer_id)
                    return

    async def _check(
        self, links: StageLinks, sequence: WitnessedSequence, unprobed: Sequence[WitnessedPass]
    ) -> None:
        """Check a sequence, and act on the finding."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._probe(links, unprobed)
                one = trace_of(sequence.tokens[:CHECK_TOKENS], links.plan.places)
                if not one.positions:
                    return
                other = await self._replayed(sequence, one, unlike=one.peer_ids)
                found = contradiction(one, other, sampling=sequence.sampling, numerics=links.plan.numerics)
                if found is None:
                    self._note_right(one, other)
                else:
                    await self._decide(sequence, one, other, found, numerics=links.plan.numerics)
                self.checked += 1
        except NoChain as error:
            LOG.debug("no check: %s", error)
        except (CosineError, TimeoutError) as error:
            LOG.info("a check came to nothing: %s", error)
        except Exception:
            LOG.exception("a check failed")

    def _note_right(self, one: ChainTrace, other: ChainTrace) -> None:
        """Credit the stages of both chains that the other one confirms."""
        for peer_id in {*one.peer_ids} ^ {*other.peer_ids}:
            self.disputes.standings.note_right(peer_id, now_s=_now_s())

    async def _decide(
        self,
        sequence: WitnessedSequence,
        one: ChainTrace,
        other: ChainTrace,
        found: Contradiction,
        *,
        numerics: str,
    ) -> None:
        """Find out which stages lied, and leave the chain if it contains them."""
        liars: tuple[str, ...] = ()
        if not found.is_link:
            liars = await self._third(sequence, one, other, found, numerics=numerics)
        if liars:
            self.disputes.note_wrong(liars, found.layers, now_s=_now_s())
        else:
            liars = self.disputes.judge(found, now_s=_now_s())
        verdict = f"{', '.join(liars)} lied" if liars else "it is unknown who lied"
        sides = f"{', '.join(found.ones)} and {', '.join(found.others)} disagree"
        LOG.warning("layers %s: %s, and %s", found.layers, sides, verdict)
        links = self._links
        if links is not None and not self.disputes.are_free(links.stages, now_s=_now_s()):
            links.leave(f"Layers {found.layers}: {sides}, and {verdict}.")

    async def _third(
        self,
        sequence: WitnessedSequence,
        one: ChainTrace,
        other: ChainTrace,
        found: Contradiction,
        *,
        numerics: str,
    ) -> tuple[str, ...]:
        """The side that a third holder contradicts while it confirms the other; empty if undecided."""
        without, used = set(found.members), {*one.peer_ids, *other.peer_ids}
        for _ in range(MAX_THIRDS):
            try:
                third = await self._replayed(sequence, one, unlike=used, without=without)
            except CosineError as error:
                LOG.info("undecided: %s", error)
                return ()
            agree = [
                agrees(each, third, found, sampling=sequence.sampling, numerics=numerics) for each in (one, other)
            ]
            if agree[0] != agree[1]:
                return found.others if agree[0] else found.ones
            without |= set(third.between(found.layers.first, found.layers.end))
        return ()

    async def _replayed(
        self, sequence: WitnessedSequence, of: ChainTrace, *, unlike: Collection[str], without: Collection[str] = ()
    ) -> ChainTrace:
        """The trace of another chain over the same tokens and seeds. Raises `NoChain`, `ChainLost`."""
        tokens = sequence.tokens[: of.positions]
        pool_tokens = -(-(len(tokens) + 1) // PAGE_TOKENS) * PAGE_TOKENS
        async with self._finder.second(pool_tokens=pool_tokens, unlike=unlike, without=without) as engine:
            if sequence.sampling.constraint is not None and not engine.links.applies_constraints:
                raise NoChain("The others apply no constraints.")
            tokens = tokens[: engine.free_tokens]
            number = engine.open(sampling=sequence.sampling, prompt_tokens=sequence.prompt_tokens)
            found: list[WitnessedToken] = []
            for start in range(0, len(tokens), PIECE_TOKENS):
                found += await _replay(engine, number, tokens[start : start + PIECE_TOKENS])
            return trace_of(found, engine.links.plan.places)


async def _replay(engine: StagedEngine, sequence: int, piece: Sequence[WitnessedToken]) -> list[WitnessedToken]:
    """Feed some tokens to a chain, and probe each with the same seed as at the other chain."""
    scored = next((n for n, each in enumerate(piece) if each.fed.choices[each.index] is not None), len(piece))
    names = tuple(range(len(piece)))
    row = Row(
        sequence,
        tuple(each.token for each in piece),
        names,
        (-1, *names[:-1]),
        scored_from=scored,
        candidates=CANDIDATES if scored < len(piece) else 0,
    )
    links = engine.links
    number = links.fed
    engine.begin([row])
    (result,) = engine.end([row], list(await links.answer()))
    if result.error is not None:
        raise result.error
    engine.keep(sequence, names)
    choices = [*[None] * scored, *result.choices]
    found: list[WitnessedToken] = []
    for seed, run in groupby(piece, key=lambda each: each.fed.seed):
        assert seed is not None, "what is compared was probed"
        tokens, start = [each.token for each in run], len(found)
        said = await links.probe(Probe(seed, (FeedPart(number, start, len(tokens)),)))
        fed = WitnessedPass(number, (), len(tokens), choices=choices[start : start + len(tokens)], seed=seed)
        fed.told = tuple(None if traces is None else told_of(traces[0], tokens=fed.tokens) for traces in said)
        found += [WitnessedToken(token, fed, index) for index, token in enumerate(tokens)]
    return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()
