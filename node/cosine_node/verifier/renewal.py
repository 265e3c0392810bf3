"""Tokens per second of two ways to go on after a miss: hold the pass for drafts, or decode plainly meanwhile.

A renewal argument. After a miss the tree is empty; the first level of drafts arrives w later, each further one d
after it. A pass over m levels commits E(m) = 1 + a + ... + a^m tokens on average, a the chance that a token was
drafted, and with chance a^(m+1) no miss has happened yet: then passes over the growing tree follow, which commit e
tokens each and go on with chance q. Every way is a cycle from miss to miss; its rate is mean tokens over mean time.

Myopic rules ("wait if this pass gets longer") lose: a plain pass commits a token and lets the tree grow deeper
meanwhile, a held one starts as soon as the tree is shallow.
"""

from dataclasses import dataclass
from typing import Final

MAX_LEVELS: Final = 6
MAX_PLAIN_PASSES: Final = 32
MAX_CHANCE: Final = 0.98
MIN_GAP_S: Final = 1e-4
DOUBT: Final = 0.3
"""Holding must seem better by this share of wait over pass: the figures rest on a few passes, and what seems best
of several seems too good. Without it holding lost 2 % of speed at 20 ms of RTT on traces of the embedded family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """What was measured of one request.

    `plain_s` (C) and `drafted_s` are passes without and with drafts, `delay_s` (w) and `gap_s` (d) as above,
    `chance` (a) that the token after a drafted prefix was drafted, `run_tokens` (e) and `run_chance` (q) of a run.
    """

    plain_s: float
    drafted_s: float
    delay_s: float
    gap_s: float
    chance: float
    run_tokens: float
    run_chance: float

    def holding(self, levels: int) -> float:
        """Tokens per second if every pass after a miss is held until so many levels have arrived."""
        wait_s = self.delay_s + (levels - 1) * self.gap_s
        time_s, tokens = self._drafted(levels)
        return tokens / (wait_s + time_s)

    def going(self) -> float:
        """Tokens per second if the verifier decodes plainly until drafts are there that the text has not left."""
        chance = min(self.chance, MAX_CHANCE)
        time_s = tokens = 0.0
        here = 1.0
        for passes in range(1, MAX_PLAIN_PASSES + 1):
            time_s += here * self.plain_s
            tokens += here
            here *= chance
            levels = self._levels_after(passes * self.plain_s) - passes
            if levels >= 1:
                drafted_s, drafted_tokens = self._drafted(levels)
                return (tokens + here * drafted_tokens) / (time_s + here * drafted_s)
        return tokens / time_s

    def _levels_after(self, seconds: float) -> int:
        return int((seconds - self.delay_s) / max(self.gap_s, MIN_GAP_S)) + 1 if seconds >= self.delay_s else 0

    def _drafted(self, levels: int) -> tuple[float, float]:
        """Mean time and tokens from the start of a pass over so many levels to the next miss."""
        chance, run_chance = min(self.chance, MAX_CHANCE), min(self.run_chance, MAX_CHANCE)
        tokens = (1.0 - chance ** (levels + 1)) / (1.0 - chance)
        to_run = chance ** (levels + 1) / (1.0 - run_chance)
        return self.drafted_s * (1.0 + to_run), tokens + to_run * self.run_tokens


def best_levels(rhythm: Rhythm) -> tuple[int, float]:
    """For how many levels to hold a pass after a miss, 0 to go at once, and the tokens per second of that."""
    going = rhythm.going()
    held = {levels: rhythm.holding(levels) for levels in range(1, MAX_LEVELS + 1)}
    best = max(held, key=lambda levels: (held[levels], -levels))
    doubt = 1.0 + DOUBT * (rhythm.delay_s + (best - 1) * rhythm.gap_s) / max(rhythm.plain_s, MIN_GAP_S)
    return (best, held[best]) if held[best] > doubt * going else (0, going)
