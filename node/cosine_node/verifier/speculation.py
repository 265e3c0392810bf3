"""The cost and the gain of drafts, for one client and for one request. Pure.

A client states how probable its drafts are, and all requests of a pass wait for the nodes that it feeds.
`DraftRates` learns how often drafts of each stated probability are accepted. `SpeculationAccount` bounds what the
drafts of one request cost the others.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.verify import HOME_AUTHOR

CERTAIN: Final = 1.5
"""Standard errors of the lower bound on an acceptance rate: one rate in fifteen is overestimated."""
LIKE_DRAFTS: Final = 64
"""Recent drafts that determine the acceptance rate of a probability class. If all were accepted, the bound is 0.966
(32 drafts: 0.934; 128: 0.983), and a node that costs more of a plain pass is not fed. Drafts that turn bad are
trusted for as long."""
CLASSES: Final = 5
"""Probability classes of equal width. More classes learn more slowly; with fewer, likely drafts pay for the
others."""
SAID_DRAFTS: Final = LIKE_DRAFTS / 8
"""Weight of the client's stated probability, in outcomes: all before the first outcome, a ninth in the end."""


class DraftRates:
    """Acceptance rates of a client's drafts at one temperature, learned from all drafts, fed or not."""

    def __init__(self) -> None:
        self._judged = [0.0] * CLASSES
        self._right = [0.0] * CLASSES

    def learn(self, tree: LiveTree, tokens: Sequence[int]) -> None:
        """Learn from tokens about to be committed, except about home drafts; call before `tree.advance`."""
        for parent, token in zip((tree.root, *tree.follow(tokens)), tokens, strict=False):
            for child in parent.children.values():
                if (offered := probability_of_others(child)) is None:
                    continue
                like = _class_of(offered)
                keep = 1.0 - 1.0 / LIKE_DRAFTS
                self._judged[like] = keep * self._judged[like] + 1.0
                self._right[like] = keep * self._right[like] + (child.token == token)

    def least(self, draft_probability: float) -> float:
        """The lower bound (Wilson) of the acceptance rate at this probability; 0 without observations."""
        like = _class_of(draft_probability)
        judged, right, square = self._judged[like], self._right[like], CERTAIN**2
        if not judged:
            return 0.0
        spread = CERTAIN * math.sqrt(max(0.0, right * (judged - right) / judged) + square / 4)
        return max(0.0, (right + square / 2 - spread) / (judged + square))

    def usual(self, draft_probability: float) -> float:
        """The acceptance rate at this probability, which is the prior."""
        like = _class_of(draft_probability)
        return (self._right[like] + SAID_DRAFTS * draft_probability) / (self._judged[like] + SAID_DRAFTS)


def _class_of(draft_probability: float) -> int:
    return min(int(draft_probability * CLASSES), CLASSES - 1)


MAX_DEBT: Final = 0.01
FREE_PASSES: Final = 0.5
"""These bound the cost of speculation to 1 %: a request may owe that share of its plain time so far, or half a
plain pass, which lets a short request speculate where nodes are cheap."""


class SpeculationAccount:
    """The time that one request spent, minus its committed tokens times the cost of a plain pass at the same load.

    It limits the drafts that are fed to those it can afford if all are rejected, within the larger of `MAX_DEBT`
    and `FREE_PASSES`, and to those that pay even at the lower bound of the client's acceptance rate.

    This protects other requests in a pass from a client whose draft probabilities are wrong. An honest request of
    60 tokens next to one that sends only wrong drafts as certain takes 0.87 s without accounts and 0.62 s with
    them; plain decoding takes 0.60 s (emulated passes of 10 ms, 14.5 ms with a third token).
    """

    def __init__(self, rates: DraftRates | None = None) -> None:
        self._plain_s = 0.0
        self._debt_s = 0.0
        self._pass_s = 0.0
        self.rates = rates or DraftRates()

    def charge(self, *, spent_s: float, tokens: int, plain_pass_s: float) -> None:
        """Charge one pass: its duration, the tokens it committed, and the time of a plain one at the same load."""
        self._plain_s += tokens * plain_pass_s
        self._debt_s += spent_s - tokens * plain_pass_s
        self._pass_s = plain_pass_s

    @property
    def may_speculate(self) -> bool:
        return self._debt_s <= self._most_debt_s(self._pass_s)

    def _most_debt_s(self, plain_pass_s: float) -> float:
        return max(MAX_DEBT * self._plain_s, FREE_PASSES * plain_pass_s)

    def most_nodes(
        self, nodes: Iterable[TreeNode], longer_s: Callable[[int], float], *, plain_pass_s: float
    ) -> int:
        """The number of leading nodes that may be fed; `longer_s` of a number is the time that they add."""
        least: dict[TreeNode, float] = {}
        affordable = certain = 0
        surely = most_won_s = 0.0

        def least_of(node: TreeNode | None) -> float:
            if node is None or node.parent is None:
                return 1.0
            known = least.get(node)
            return least_of(node.parent) * node.draft_probability if known is None else known

        for count, node in enumerate(nodes, 1):
            least[node] = least_of(node.parent) * self.rates.least(node.draft_probability)
            surely += least[node]
            cost_s = longer_s(count)
            if self._debt_s + cost_s <= self._most_debt_s(plain_pass_s):
                affordable = count
            if (won_s := surely * plain_pass_s - cost_s) > most_won_s:
                certain, most_won_s = count, won_s
        return max(affordable, certain)


def is_planned(node: TreeNode) -> bool:
    """True for a node that the verifier's own drafter drafted, alone or with others."""
    return HOME_AUTHOR in node.draft_probabilities


def probability_of_others(node: TreeNode) -> float | None:
    """The highest draft probability of authors other than the verifier's own drafter; None without any."""
    said = [p for author, p in node.draft_probabilities.items() if author != HOME_AUTHOR]
    return max(said, default=None)
