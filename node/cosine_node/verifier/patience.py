"""Wait-or-go: whether to hold a pass for a draft that is about to arrive (DESIGN idea II).

Pure: times are arguments. The choice compares with the rate of going on, not this pass with the next one.

Let L be the request's long-run tokens per second (what it had, or what holding every empty pass would give if that
is more: a low rate must not argue for keeping it low), C the time of a plain pass, w the wait for the first draft
after a miss, a the chance that a pass accepts a draft. Holding an empty pass turns the state "empty" into "drafted"
at the price L w; going commits one token for L C and reaches "drafted" with chance a. Equal values give: hold if
L (C - a w) > 1. With drafts at hand, one more level brings g = (leaf probability) a tokens for L d, d the time
between drafts, but g (1 - a) of it would also have come by going; so hold if g (1 - (1 - a) L w) > L d.
"""

from typing import Final

WEIGHT: Final = 0.2
SLACK: Final = 1.5
SLACK_S: Final = 0.002
MIN_SAMPLES: Final = 2


class Patience:
    """Measured arrival times and rates of one request, and the decision made from them."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self.acceptance: float | None = None
        self.delay_s: float | None = None
        self.gap_s: float | None = None
        self._drafted_tokens = 1.0
        self._drafted_pass_s = 0.0
        self._samples = 0
        self._emptied_at_s: float | None = None
        self._arrived_at_s: float | None = None
        self._ended_at_s: float | None = None

    def note_arrival(self, now_s: float) -> None:
        """A draft for this request arrived."""
        if self._emptied_at_s is not None:
            self.delay_s = _averaged(self.delay_s, now_s - self._emptied_at_s)
            self._samples += 1
            self._emptied_at_s = None
        elif self._arrived_at_s is not None:
            self.gap_s = _averaged(self.gap_s, now_s - self._arrived_at_s)
        self._arrived_at_s = now_s

    def note_pass(self, *, began_s: float, ended_s: float, nodes: int, tokens: int, is_tree_empty: bool) -> None:
        """A pass ended."""
        idle_s = 0.0 if self._ended_at_s is None else max(0.0, began_s - self._ended_at_s)
        self.tokens_per_s = _averaged(self.tokens_per_s, tokens / (ended_s - began_s + idle_s))
        if nodes:
            self.acceptance = _averaged(self.acceptance, float(tokens > 1))
            self._drafted_tokens = _averaged(self._drafted_tokens, float(tokens))
            self._drafted_pass_s = _averaged(self._drafted_pass_s or None, ended_s - began_s)
        self._emptied_at_s = ended_s if is_tree_empty else None
        self._ended_at_s = ended_s

    def hold_until(self, now_s: float, *, plain_pass_s: float, leaf_probability: float | None) -> float:
        """Until when to hold a pass that could start now; `now_s` or less means go.

        `leaf_probability` is that of the most probable leaf of the live tree, None if the tree is empty.
        """
        if self._samples < MIN_SAMPLES or self.delay_s is None or self.acceptance is None:
            return now_s
        rate = self._rate(self.delay_s)
        if leaf_probability is None:
            return self._hold_empty(now_s, plain_pass_s, rate, self.delay_s)
        return self._hold_drafted(now_s, leaf_probability, rate, self.delay_s)

    def _rate(self, delay_s: float) -> float:
        """Tokens per second to compare with."""
        held = self._drafted_tokens / (delay_s + self._drafted_pass_s)
        return max(self.tokens_per_s or 0.0, held)

    def _hold_empty(self, now_s: float, plain_pass_s: float, rate: float, delay_s: float) -> float:
        if self._emptied_at_s is None:
            return now_s
        left_s = max(0.0, self._emptied_at_s + delay_s - now_s)
        pays = rate * (plain_pass_s - (self.acceptance or 0.0) * left_s) > 1.0
        return self._emptied_at_s + SLACK * delay_s + SLACK_S if pays else now_s

    def _hold_drafted(self, now_s: float, leaf_probability: float, rate: float, delay_s: float) -> float:
        if self.gap_s is None or self._arrived_at_s is None:
            return now_s
        acceptance = self.acceptance or 0.0
        gain = leaf_probability * acceptance
        kept = 1.0 - (1.0 - acceptance) * rate * delay_s
        pays = gain * kept > rate * self.gap_s
        return self._arrived_at_s + SLACK * self.gap_s + SLACK_S if pays else now_s


def _averaged(known: float | None, sample: float) -> float:
    return sample if known is None else known + WEIGHT * (sample - known)
