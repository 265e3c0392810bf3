"""Watches a chain in use: measures its stages and links, and leaves it when another one is better.

Theory of operation
-------------------
`ChainWatch` takes the ended passes of a chain (`measured`) every `CHECK_S`, and decides:

- If a pass is *stuck* at a stage, the chain is left; that stage and the one before are suspected.
- If delays add up (`measured`), the chain is left for one that takes less than half as long.
- If the last stage returns rows without tokens, another one is tried (`doubt`).

A chain is left only if another one exists, and with growing patience, so that a head with a slow line does not
switch chains for ever.
"""

import asyncio
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import Final

from cosine_node.chains.known_stages import KnownStages
from cosine_node.chains.links import ANSWER_S, StageLinks
from cosine_node.chains.measured import EndedPass, Measured, StuckPass
from cosine_node.chains.search import FoundChain, NoChain

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
            came_s = ended.came_s[1 + number]
            if came_s is not None:
                self._known.links.note(pair, size_bytes=size_bytes, seconds=came_s, now_s=now_s)

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


def _now_s() -> float:
    return asyncio.get_running_loop().time()
