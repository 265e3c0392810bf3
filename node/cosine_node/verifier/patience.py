"""Wait-or-go: whether to hold a pass for a draft that is about to arrive (DESIGN idea II).

Pure: times are arguments. With an empty tree the way with more tokens per second decides (`renewal`), L being that
rate. With drafts at hand, one more level brings g = (leaf probability) a tokens for L d, d the time between levels
and a the chance that a pass accepts one, but g (1 - a) of it would also have come by going; so hold if
g (1 - (1 - a) L w) > L d (1 + w / C), w the wait for the first draft after a miss and C a plain pass. The last
factor is doubt: the longer the way, the less the figures say.
"""

from typing import Final

from cosine_node.verifier.renewal import Rhythm, best_levels

WEIGHT: Final = 0.2
SLACK: Final = 1.5
SLACK_S: Final = 0.002
MIN_SAMPLES: Final = 2


class Patience:
    """Measured arrival times and rates of one request, and the decision made from them."""

    def __init__(self) -> None:
        self.acceptance: float | None = None
        self.delay_s: float | None = None
        self.gap_s: float | None = None
        self.run_tokens = 1.0
        self.run_chance = 0.0
        self._drafted_pass_s: float | None = None
        self._samples = 0
        self._emptied_at_s: float | None = None
        self._arrived_at_s: float | None = None
        self._deepest = 0

    def note_arrival(self, now_s: float, *, deepest: int) -> None:
        """A draft for this request arrived, whose deepest token has this output position."""
        if self._emptied_at_s is not None:
            self.delay_s = _averaged(self.delay_s, now_s - self._emptied_at_s)
            self._samples += 1
            self._emptied_at_s = None
        elif deepest <= self._deepest:
            return
        elif self._arrived_at_s is not None:
            self.gap_s = _averaged(self.gap_s, (now_s - self._arrived_at_s) / (deepest - self._deepest))
        self._arrived_at_s, self._deepest = now_s, deepest

    def note_pass(self, *, began_s: float, ended_s: float, nodes: int, tokens: int, is_tree_empty: bool) -> None:
        """A pass ended."""
        if nodes:
            self.acceptance = _averaged(self.acceptance, float(tokens > 1))
            self.run_tokens = _averaged(self.run_tokens, float(tokens))
            self.run_chance = _averaged(self.run_chance, float(not is_tree_empty))
            self._drafted_pass_s = _averaged(self._drafted_pass_s, ended_s - began_s)
        if not is_tree_empty:
            self._emptied_at_s = None
        elif self._emptied_at_s is None:
            self._emptied_at_s = ended_s

    def rhythm(self, plain_pass_s: float) -> Rhythm | None:
        """What was measured so far, None while it is too little to decide by."""
        if self._samples < MIN_SAMPLES or self.delay_s is None or self.acceptance is None:
            return None
        return Rhythm(
            plain_s=plain_pass_s,
            drafted_s=self._drafted_pass_s or plain_pass_s,
            delay_s=self.delay_s,
            gap_s=self.delay_s if self.gap_s is None else self.gap_s,
            chance=self.acceptance,
            run_tokens=self.run_tokens,
            run_chance=self.run_chance,
        )

    def hold_until(self, now_s: float, *, plain_pass_s: float, leaf_probability: float | None) -> float:
        """Until when to hold a pass that could start now; `now_s` or less means go.

        `leaf_probability` is that of the most probable leaf of the live tree, None if the tree is empty.
        """
        rhythm = self.rhythm(plain_pass_s)
        if rhythm is None:
            return now_s
        levels, rate = best_levels(rhythm)
        if leaf_probability is None:
            if self._emptied_at_s is None or not levels:
                return now_s
            return self._emptied_at_s + SLACK * rhythm.delay_s + SLACK_S
        if self._arrived_at_s is None or self.gap_s is None:
            return now_s
        gain = leaf_probability * rhythm.chance
        kept = 1.0 - (1.0 - rhythm.chance) * rate * rhythm.delay_s
        price = rate * self.gap_s * (1.0 + rhythm.delay_s / plain_pass_s)
        return self._arrived_at_s + SLACK * self.gap_s + SLACK_S if gain * kept > price else now_s


def _averaged(known: float | None, sample: float) -> float:
    return sample if known is None else known + WEIGHT * (sample - known)
