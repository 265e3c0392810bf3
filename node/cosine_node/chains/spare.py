"""A warm second chain, over which requests resume when the one in use is lost.

Theory of operation
-------------------
In the background the head feeds the kept tokens of its texts to a chain over other stages; it shares only stages
that nobody replaces. If the chain in use is lost, the head takes the second one with its prefix cache: every
request opens a new sequence, finds all but its last tokens cached, and feeds these in one pass.

Requests have priority: nothing is fed while prompts are under way, one pass runs at a time, and activations take at
most `LINK_BYTES_PER_S`, since a stage of both chains sends those of both.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cosine_engine.base import OutOfPages, Row
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import KeptText, StagedEngine
from cosine_node.chains.finder import CHECK_S, LINK_BYTES_PER_S, ChainFinder, SecondChain
from cosine_node.chains.known_stages import GONE_S
from cosine_node.chains.search import NoChain
from cosine_node.stages.frames import ChainLost
from cosine_protocol.request import Sampling

LOG = logging.getLogger(__name__)
EVERY_TOKENS: Final = 64
"""Tokens of one pass here, and the most that a failover feeds: 0.72 s of silence at 10 Mbit/s upstream
(docs/decisions/0035). Twice as many block stages and links for twice as long; half as many read weights twice as
often."""
LEAST_TOKENS: Final = 4 * EVERY_TOKENS
"""Shorter texts are fed again in a pass or two, so they need no second chain."""
ANSWER_S: Final = 20.0
"""Limit of a pass of `EVERY_TOKENS`; a slower chain would not help."""


@dataclass(slots=True)
class _WarmChain:
    """A warm chain, the stages of the chain in use, and the sequence of each text."""

    second: SecondChain
    beside: tuple[str, ...]
    sequences: dict[int, int] = field(default_factory=dict)


class SpareChain:
    """The second chain of a head. `run` keeps it warm until cancelled."""

    def __init__(self, finder: ChainFinder, engine: StagedEngine, checks: ChainChecks) -> None:
        """`engine` is that of the chain in use."""
        self._finder = finder
        self._engine = engine
        self._checks = checks
        self._pause_s = EVERY_TOKENS * finder.needs.token_bytes / LINK_BYTES_PER_S
        self._warm: _WarmChain | None = None
        self._opening: asyncio.Future[SecondChain] | None = None
        self.fed_tokens = 0
        """The number of tokens that were computed ahead."""

    async def run(self) -> None:
        """Keep a chain warm until cancelled."""
        try:
            while True:
                try:
                    await asyncio.sleep(self._pause_s if await self._feed_some() else CHECK_S)
                except (NoChain, ChainLost, OutOfPages, TimeoutError) as error:
                    LOG.debug("no chain is kept warm: %s", error)
                    await self._drop()
                    # A failed stage is not used before.
                    await asyncio.sleep(GONE_S)
        finally:
            await self._drop()

    async def hand_over(self) -> StagedEngine | None:
        """End the chain in use; return the warm engine to go on over, or None without a fit one."""
        warm = self._take()
        if warm is None:
            return None
        if await self._finder.go_on_over(warm):
            return warm.engine
        await warm.close()
        return None

    def _take(self) -> SecondChain | None:
        if self._opening is not None:
            # The caller opens a chain now, and room at stages may be scarce.
            self._opening.cancel()
        warm, self._warm = self._warm, None
        return None if warm is None else warm.second

    async def _drop(self) -> None:
        second = self._take()
        if second is not None:
            await second.close()

    async def _feed_some(self) -> bool:
        """Feed some tokens of a text; False if no text needs it or requests have priority.

        Raises `NoChain`, `ChainLost`, `OutOfPages` or `TimeoutError`.
        """
        texts = {text.sequence: text for text in self._engine.texts}
        warm = self._warm
        if warm is not None and (warm.second.links.lost.is_set() or warm.beside != self._used):
            await self._drop()
            warm = None
        if warm is not None:
            for ended in warm.sequences.keys() - texts.keys():
                warm.second.engine.release(warm.sequences.pop(ended))
        text = next((text for text in texts.values() if self._unfed(text) >= EVERY_TOKENS), None)
        if text is None or self._engine.links.tokens_under_way > EVERY_TOKENS:
            return False
        if warm is None:
            warm = await self._open()
        if warm is not None:
            await self._feed(warm, text)
        return warm is not None

    @property
    def _used(self) -> tuple[str, ...]:
        return () if self._finder.found is None else self._finder.found.peer_ids

    def _unfed(self, text: KeptText) -> int:
        """The number of tokens of a text that are not computed ahead; 0 for a short one."""
        warm = self._warm
        if warm is None or text.sequence not in warm.sequences:
            return len(text.tokens) if len(text.tokens) >= LEAST_TOKENS else 0
        return len(text.tokens) - len(warm.second.engine.tree(warm.sequences[text.sequence]).tokens)

    async def _open(self) -> _WarmChain | None:
        """Open a chain beside the one in use; None if that was lost meanwhile. Raises `NoChain`, `ChainLost`."""
        used = self._used
        self._opening = asyncio.ensure_future(self._finder.spare())
        try:
            await asyncio.wait([self._opening])
            with suppress(asyncio.CancelledError):
                second = self._opening.result()
                second.engine.use(second.links, self._checks.beside(second.links))
                self._warm = _WarmChain(second, used)
            return self._warm
        finally:
            self._opening.cancel()
            self._opening = None

    async def _feed(self, warm: _WarmChain, text: KeptText) -> None:
        """Run one pass over the next tokens of a text."""
        engine = warm.second.engine
        sequence = warm.sequences.get(text.sequence)
        if sequence is None:
            # No tokens are chosen here, so the sampling does not matter.
            sequence = engine.open(sampling=Sampling(), prompt_tokens=len(text.tokens), scope=text.scope)
            warm.sequences[text.sequence] = sequence
            engine.reuse_prefix(sequence, text.tokens)
        known = len(engine.tree(sequence).tokens)
        tokens = tuple(text.tokens[known : known + EVERY_TOKENS])
        if not tokens:
            return
        row = Row.chain(sequence, tokens, scored_from=len(tokens))
        engine.begin([row])
        # Passes are in order, so later ones find it computed.
        engine.keep(sequence, row.nodes)
        async with asyncio.timeout(ANSWER_S):
            results = await engine.links.answer()
        engine.end([row], list(results))
        self.fed_tokens += len(tokens)
