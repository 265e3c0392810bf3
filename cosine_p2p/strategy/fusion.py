"""Fusion: one probability for every node of the live tree, from all drafters that drafted there.

The weighted mixture finds the expert, where the largest draft probability alone (CoSine, arXiv 2503.10325) does
not: drafters outside their domain are confidently wrong (measured).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_p2p.strategy.tree import LiveTree, TreeNode

BINS: Final = 10
PRIOR_STRENGTH: Final = 8.0
"""Number of outcomes in a bin that weigh as much as the prior (decision 3). A request of 128 tokens has about ten
per bin."""


class Calibration:
    """Acceptance rates by draft probability, separate for an author's first choice at a prefix and for others.

    A draft probability p in a bin with n outcomes of which h were accepted counts as (h + s e) / (n + s), s =
    `PRIOR_STRENGTH`. The prior e is p, for a first choice p to the power `first_power`.
    """

    def __init__(self, *, first_power: float = 1.0) -> None:
        self._first_power = first_power
        self._hits = [0.0] * (2 * BINS)
        self._outcomes = [0.0] * (2 * BINS)

    def __call__(self, probability: float, *, is_first: bool) -> float:
        index = _bin_of(probability, is_first)
        prior = probability**self._first_power if is_first else probability
        return (self._hits[index] + PRIOR_STRENGTH * prior) / (self._outcomes[index] + PRIOR_STRENGTH)

    def observe(self, probability: float, *, is_first: bool, hit: bool) -> None:
        index = _bin_of(probability, is_first)
        self._outcomes[index] += 1.0
        self._hits[index] += hit


def _bin_of(probability: float, is_first: bool) -> int:
    # Called for each waiting candidate of a drafter after each commit; `min` and `max` would take longer.
    index = int(probability * BINS) if probability > 0.0 else 0
    return (index if index < BINS else BINS - 1) + (BINS if is_first else 0)


CAUTION: Final = 0.3
"""Power of the weights in a fused probability; 1 is the Bayesian mixture. Tokens of one text are not independent.
On the embedded family's split "tune", 0.2 to 0.3 gave the most accepted tokens of 0.1 to 1."""


class Fusion:
    """Calibrates the authors of one request and scores nodes of its tree for given author weights."""

    def __init__(self) -> None:
        self._calibrations = defaultdict[int, Calibration](Calibration)

    def view(self, tree: LiveTree, weights: Mapping[int, float]) -> "FusedView":
        """Return scores of the tree's nodes, valid until its next change. Authors without a weight do not count."""
        cautious = {author: weight**CAUTION for author, weight in weights.items()}
        return FusedView(tree, cautious, self._calibrations)

    def learn(self, tree: LiveTree, tokens: Sequence[int]) -> tuple[dict[int, float], ...]:
        """Calibrate all authors on tokens about to be committed; call before `tree.advance`.

        Returns, for each token that the tree reaches, its probability by each author that drafted there. An author
        that only repeats earlier drafts of others did not draft.
        """
        likelihoods = []
        for parent, token in zip((tree.root, *tree.follow(tokens)), tokens, strict=False):
            totals = _totals_below(parent)
            likelihoods.append(self._likelihoods(parent, token, totals))
            for child in parent.children.values():
                for author, probability in child.draft_probabilities.items():
                    is_first = probability >= totals[author].highest
                    self._calibrations[author].observe(probability, is_first=is_first, hit=child.token == token)
        return tuple(likelihoods)

    def _likelihoods(self, parent: TreeNode, token: int, totals: Mapping[int, "_Total"]) -> dict[int, float]:
        """Return the calibrated probability of the token after `parent` by author, 0 if it was not drafted."""
        child = parent.children.get(token)
        given = {} if child is None else child.draft_probabilities
        likelihoods = {}
        for author, total in totals.items():
            if not total.is_news:
                continue
            probability, calibrated = given.get(author), self._calibrations[author]
            if probability is None:
                likelihoods[author] = 0.0
            else:
                likelihoods[author] = calibrated(probability, is_first=probability >= total.highest) / total.sum
        return likelihoods


class FusedView:
    """Probabilities of the nodes of one tree for one set of weights, each computed once."""

    def __init__(
        self, tree: LiveTree, weights: Mapping[int, float], calibrations: Mapping[int, Calibration]
    ) -> None:
        self._weights = weights
        self._calibrations = calibrations
        self._conditionals: dict[TreeNode, float] = {}
        self._path_probabilities: dict[TreeNode, float] = {tree.root: 1.0}

    def conditional(self, node: TreeNode) -> float:
        """Return the probability of a node given its parent."""
        if node not in self._conditionals:
            assert node.parent is not None
            self._score_children(node.parent)
        return self._conditionals[node]

    def path_probability(self, node: TreeNode) -> float:
        probability = self._path_probabilities.get(node)
        if probability is None:
            assert node.parent is not None
            probability = self.path_probability(node.parent) * self.conditional(node)
            self._path_probabilities[node] = probability
        return probability

    def best_author(self, node: TreeNode) -> int:
        """Return the author with the highest weighted draft probability."""
        return node.most_confident_author(weights=self._weights)

    def _score_children(self, parent: TreeNode) -> None:
        totals = _totals_below(parent)
        total_weight = sum(self._weights.get(author, 0.0) for author in totals)
        for child in parent.children.values():
            weighted = sum(
                self._weights.get(author, 0.0)
                * self._calibrations[author](probability, is_first=probability >= totals[author].highest)
                / totals[author].sum
                for author, probability in child.draft_probabilities.items()
            )
            self._conditionals[child] = min(1.0, weighted / total_weight) if total_weight > 0.0 else 0.0


@dataclass(slots=True)
class _Total:
    """An author's maximum and sum (at least 1) of probabilities below a prefix; `is_news`: it drafted one first."""

    highest: float = 0.0
    sum: float = 0.0
    is_news: bool = False


def _totals_below(parent: TreeNode) -> dict[int, _Total]:
    totals: dict[int, _Total] = {}
    for child in parent.children.values():
        for rank, (author, probability) in enumerate(child.draft_probabilities.items()):
            total = totals.setdefault(author, _Total())
            total.highest = max(total.highest, probability)
            total.sum += probability
            total.is_news = total.is_news or not rank
    for total in totals.values():
        total.sum = max(1.0, total.sum)
    return totals
