"""A head's checks of its stages: what was computed over one chain is computed again over another, and compared.

Of every pass the stages say what they did, soon after it, whether it is checked or not: whoever learned from being
asked that it is watched could lie elsewhere. Once a sequence ends, a draw by standing says whether it is checked.
The check runs beside everything else: nobody waits for it, and one runs at a time.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import groupby
from typing import Final, Protocol

import numpy as np

from cosine_node.chains.comparison import ChainTrace, Contradiction, agrees, contradiction
from cosine_node.chains.disputes import Disputes
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.remote_chain import RemoteChain
from cosine_node.chains.search import NoChain
from cosine_node.chains.witness import (
    Told,
    Witness,
    WitnessedPass,
    WitnessedSequence,
    WitnessedToken,
    told_of,
    trace_of,
)
from cosine_node.engine.base import Row
from cosine_node.engine.choice_gap import CANDIDATES
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.stages.operations import ChainLost
from cosine_node.stages.projections import VALUE_BYTES
from cosine_protocol.errors import CosineError
from cosine_protocol.limits import KEPT_TOKENS, MAX_FEED_TOKENS, MAX_PROBE_PARTS, PROBE_SEED_BYTES
from cosine_protocol.stage_messages import FeedPart, PartTrace, Probe

LOG = logging.getLogger(__name__)
PROBED_TOKENS: Final = 64
"""A quarter of what stages keep: the rest may be fed meanwhile. One message asks for many passes."""
CHECK_TOKENS: Final = 2048
"""Of a longer sequence the beginning is checked: as much as requests usually are."""
PIECE_TOKENS: Final = 64
"""As audits feed them: after each the last stage scores all tokens."""
CHECK_S: Final = 60.0
"""Longer than audits are waited for; a check that takes longer is given up."""
MAX_THIRDS: Final = 2
"""Chains that are asked to decide, one after the other."""


class SecondChains(Protocol):
    """Opens chains beside the one in use: `cosine_node.chains.source.ChainSource`."""

    def second(
        self, *, pool_tokens: int, unlike: Collection[str], without: Collection[str] = ()
    ) -> AbstractAsyncContextManager[tuple[RemoteChain, ChainEngine]]:
        """A chain that shares as few stages as possible with some peers, and none with others. Raises `NoChain`."""


class ChainChecks:
    """Checks the chains of one head. `close` it at the end.

    `chance` gives numbers from 0 to below 1, `draw` random bytes, `now_s` the time.
    """

    def __init__(
        self,
        chains: SecondChains,
        disputes: Disputes,
        *,
        chance: Callable[[], float],
        now_s: Callable[[], float],
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.disputes = disputes
        self._chains = chains
        self._chance = chance
        self._now_s = now_s
        self._draw = draw
        self._chain: RemoteChain | None = None
        self._witness: Witness | None = None
        self._unprobed: dict[RemoteChain, list[WitnessedPass]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.checked = 0
        """Checks that have ended with a finding, for or against somebody."""

    def begin(self, chain: RemoteChain, witness: Witness | None = None) -> Witness | None:
        """The witness of the passes of the chain in use from now on, which a chain that was kept warm has already.

        None where nobody knows how far honest stages are apart.
        """
        self._chain = chain
        self._witness = witness or self.beside(chain)
        return self._witness

    def beside(self, chain: RemoteChain) -> Witness | None:
        """The witness of a chain that may be the one in use later: what is computed there now counts then."""
        self._unprobed = {each: fed for each, fed in self._unprobed.items() if not each.lost.is_set()}
        if chain.numerics not in VALUE_BYTES:
            return None
        self._unprobed[chain] = []
        return Witness(
            first_feed=chain.fed,
            on_answer=partial(self._note_answered, chain),
            on_end=partial(self._note_ended, chain),
        )

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until no check is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def why_not_judge(self) -> str | None:
        """Why nothing should be judged over the present chain; None where it may."""
        stages = self._chain.stages if self._chain is not None else ()
        if not self.disputes.are_free(stages, now_s=self._now_s()):
            return "stages contradict each other"
        if not self.disputes.are_checked(stages, now_s=self._now_s()):
            return "not all stages were found right yet"
        return None

    def _note_answered(self, chain: RemoteChain, fed: WitnessedPass) -> None:
        unprobed = self._unprobed.get(chain, [])
        unprobed.append(fed)
        if sum(each.tokens for each in unprobed) >= PROBED_TOKENS:
            self._begin(self._probe(chain, self._taken(chain)))

    def _taken(self, chain: RemoteChain) -> list[WitnessedPass]:
        unprobed = self._unprobed.get(chain, [])
        taken = list(unprobed)
        unprobed.clear()
        return taken

    def _note_ended(self, chain: RemoteChain, sequence: WitnessedSequence) -> None:
        if chain is not self._chain or (self._checking is not None and not self._checking.done()):
            return
        if self._chance() < self.disputes.check_chance(chain.stages, now_s=self._now_s()):
            self._checking = self._begin(self._check(chain, sequence, self._taken(chain)))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _probe(self, chain: RemoteChain, unprobed: Sequence[WitnessedPass]) -> None:
        """Ask what was computed in passes that nobody was asked for yet."""
        batch: list[WitnessedPass] = []
        try:
            for fed in unprobed:
                if len(batch) == MAX_PROBE_PARTS or sum(each.tokens for each in (*batch, fed)) > MAX_FEED_TOKENS:
                    await self._ask(chain, batch)
                    batch = []
                batch.append(fed)
            await self._ask(chain, batch)
        except ChainLost as lost:
            LOG.info("stages were not asked what they computed: %s", lost)

    async def _ask(self, chain: RemoteChain, batch: Sequence[WitnessedPass]) -> None:
        if not batch:
            return
        seed = self._draw(PROBE_SEED_BYTES)
        parts = tuple(FeedPart(fed.number, 0, fed.tokens) for fed in batch)
        said = await chain.probe(Probe(seed, parts))
        for number, fed in enumerate(batch):
            fed.seed = seed
            fed.told = tuple(
                None if traces is None else told_of(traces[number], tokens=fed.tokens) for traces in said
            )
        self._see_that_stages_tell(chain, batch)

    def _see_that_stages_tell(self, chain: RemoteChain, batch: Sequence[WitnessedPass]) -> None:
        """Leave a stage that says nothing of what it has to keep."""
        if self._witness is None or chain is not self._chain:
            return
        for fed in batch:
            if self._witness.fed_tokens - fed.end + fed.tokens > KEPT_TOKENS:
                continue
            for place, told in zip(chain.places, fed.told, strict=True):
                if told is None:
                    continue
                entered, left = told
                if (entered is None and not place.layers.is_first) or (left is None and not place.layers.is_last):
                    chain.leave(f"{place}: it does not say what it has computed.", peer_id=place.peer_id)
                    return

    async def _check(
        self,
        chain: RemoteChain,
        sequence: WitnessedSequence,
        unprobed: Sequence[WitnessedPass],
    ) -> None:
        """Check a sequence, and draw the consequences."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._probe(chain, unprobed)
                tokens = sequence.tokens[:CHECK_TOKENS]
                one = trace_of(tokens, chain.places)
                if not one.positions:
                    return
                other = await self._replayed(sequence, one, unlike=one.peer_ids)
                found = contradiction(one, other, sampling=sequence.sampling, numerics=chain.numerics)
                if found is None:
                    self._note_right(one, other)
                else:
                    await self._decide(sequence, one, other, found, numerics=chain.numerics)
                self.checked += 1
        except NoChain as error:
            LOG.debug("no check: %s", error)
        except (CosineError, TimeoutError) as error:
            LOG.info("a check came to nothing: %s", error)
        except Exception:
            LOG.exception("a check failed")

    def _note_right(self, one: ChainTrace, other: ChainTrace) -> None:
        """Credit whoever computed what somebody else did too."""
        for first, second in ((one, other), (other, one)):
            for peer_id in set(first.peer_ids) - set(second.peer_ids):
                self.disputes.note_right(peer_id, now_s=self._now_s())

    async def _decide(
        self,
        sequence: WitnessedSequence,
        one: ChainTrace,
        other: ChainTrace,
        found: Contradiction,
        *,
        numerics: str,
    ) -> None:
        """Find out who lied, and go on without them."""
        liars: tuple[str, ...] = ()
        if not found.is_link:
            liars = await self._third(sequence, one, other, found, numerics=numerics)
        if liars:
            self.disputes.note_wrong(liars, found.layers, now_s=self._now_s())
        else:
            liars = self.disputes.judge(found, now_s=self._now_s())
        verdict = f"{', '.join(liars)} lied" if liars else "nobody can tell who lied"
        sides = f"{', '.join(found.ones)} and {', '.join(found.others)} disagree"
        LOG.warning("layers %s: %s, and %s", found.layers, sides, verdict)
        chain = self._chain
        if chain is not None and not self.disputes.are_free(chain.stages, now_s=self._now_s()):
            chain.leave(f"Layers {found.layers}: {sides}, and {verdict}.")

    async def _third(
        self,
        sequence: WitnessedSequence,
        one: ChainTrace,
        other: ChainTrace,
        found: Contradiction,
        *,
        numerics: str,
    ) -> tuple[str, ...]:
        """The side that a third holder of the layers contradicts, where it agrees with the other one."""
        without = set(found.members)
        for _ in range(MAX_THIRDS):
            try:
                third = await self._replayed(
                    sequence, one, unlike={*one.peer_ids, *other.peer_ids}, without=without
                )
            except CosineError as error:
                LOG.info("nobody decides: %s", error)
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
        """What another chain says of the same tokens, asked with the same seeds. Raises `NoChain`, `ChainLost`."""
        tokens = sequence.tokens[: of.positions]
        pool_tokens = -(-(len(tokens) + 1) // PAGE_TOKENS) * PAGE_TOKENS
        async with self._chains.second(pool_tokens=pool_tokens, unlike=unlike, without=without) as (chain, engine):
            if sequence.sampling.constraint is not None and not chain.applies_constraints:
                raise NoChain("The others apply no constraints.")
            tokens = tokens[: engine.free_tokens]
            number = engine.open(sampling=sequence.sampling, prompt_tokens=sequence.prompt_tokens)
            found: list[WitnessedToken] = []
            for start in range(0, len(tokens), PIECE_TOKENS):
                piece = tokens[start : start + PIECE_TOKENS]
                found += await _piece(chain, engine, number, piece)
            return trace_of(found, chain.places)


async def _piece(
    chain: RemoteChain, engine: ChainEngine, sequence: int, piece: Sequence[WitnessedToken]
) -> list[WitnessedToken]:
    """Feed some tokens to a chain, and ask of each with the seed that those of the other chain were asked with."""
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
    feed = chain.fed
    engine.begin([row])
    (result,) = engine.end([row], list(await chain.answer()))
    if result.error is not None:
        raise result.error
    engine.keep(sequence, names)
    said: list[list[tuple[PartTrace, int]] | None] = [[] for _ in chain.places]
    start = 0
    for seed, run in groupby(piece, key=lambda each: each.fed.seed):
        count = len(list(run))
        assert seed is not None, "what is compared was asked for"
        for number, traces in enumerate(await chain.probe(Probe(seed, (FeedPart(feed, start, count),)))):
            of_stage = said[number]
            if traces is None or of_stage is None:
                said[number] = None
            else:
                of_stage.append((traces[0], count))
        start += count
    fed = WitnessedPass(feed, (), len(piece), choices=[*[None] * scored, *result.choices])
    fed.told = tuple(None if of_stage is None else _joined(of_stage) for of_stage in said)
    return [WitnessedToken(each.token, fed, index) for index, each in enumerate(piece)]


def _joined(of_stage: Sequence[tuple[PartTrace, int]]) -> Told:
    """What a stage says of parts that follow each other."""
    parts = [told_of(trace, tokens=count) for trace, count in of_stage]
    entered, left = [part[0] for part in parts], [part[1] for part in parts]
    return (
        None
        if any(each is None for each in entered)
        else np.concatenate([each for each in entered if each is not None]),
        None if any(each is None for each in left) else np.concatenate([each for each in left if each is not None]),
    )
