"""Fusion: one probability for every node of the live tree, from all drafters that spoke about it.

The weighted mixture recovers the routed expert without a router, where the paper's bare max-confidence loses to
it (measured on the embedded family: drafters off their domain are confidently wrong).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cosine_p2p.speculation.calibration import Calibration
from cosine_p2p.tree import LiveTree, TreeNode

CAUTION: Final = 0.3
"""Power of the weights in a fused probability; 1 is the Bayesian mixture.

The tokens of one text are no independent evidence: an author that was worse so far is still right about some of
them. On the embedded family's split "tune", 0.2 to 0.3 gave the most accepted tokens of 0.1 to 1.
"""


class Fusion:
    """Calibrates the authors of one request and scores nodes of its tree under given weights of the authors."""

    def __init__(self) -> None:
        self._calibrations: dict[int, Calibration] = {}

    def view(self, tree: LiveTree, weights: Mapping[int, float]) -> "FusedView":
        """Scores of the tree's nodes as it stands now; cheap for many nodes, stale after the next change.

        Authors without a weight do not count.
        """
        for author in weights:
            self._calibrations.setdefault(author, Calibration())
        cautious = {author: weight**CAUTION for author, weight in weights.items()}
        return FusedView(tree, cautious, self._calibrations)

    def learn(self, tree: LiveTree, tokens: Iterable[int]) -> tuple[dict[int, float], ...]:
        """Calibrate all authors on tokens about to be committed; call before `tree.advance`.

        Returns, for each token up to where the tree ends, the probability that every author that spoke there
        gave it. To repeat what others drafted before is not to speak: one that lives on another's drafts would
        look as wise as that one, and take its place.
        """
        digest = tree.root
        spoken = []
        for token in tokens:
            spoken.append(self._likelihoods(tree, digest, token))
            self._calibrate(tree, digest, token)
            child = tree.child(digest, token)
            if child is None:
                break
            digest = child.digest
        return tuple(spoken)

    def _likelihoods(self, tree: LiveTree, digest: bytes, token: int) -> dict[int, float]:
        child = tree.child(digest, token)
        claims = {} if child is None else child.claims
        return {
            author: self._worth(author, claims[author], said) if author in claims else 0.0
            for author, said in _said_at(tree, digest).items()
            if said.is_news
        }

    def _worth(self, author: int, claim: float, said: "_Said") -> float:
        """A claim by what such claims were worth: who repeats others' drafts as certain must not look wiser."""
        known = self._calibrations.get(author)
        return (claim if known is None else known(claim, is_first=claim >= said.first)) / said.total

    def _calibrate(self, tree: LiveTree, digest: bytes, token: int) -> None:
        said = _said_at(tree, digest)
        for child_token, child_digest in tree.children_of(digest).items():
            node = tree.get(child_digest)
            for author, claim in node.claims.items() if node is not None else ():
                if author in self._calibrations:
                    self._calibrations[author].observe(
                        claim, is_first=claim >= said[author].first, hit=child_token == token
                    )


class FusedView:
    """Probabilities of the nodes of one tree under one set of weights, each computed once."""

    def __init__(
        self, tree: LiveTree, weights: Mapping[int, float], calibrations: Mapping[int, Calibration]
    ) -> None:
        self._tree = tree
        self._weights = weights
        self._calibrations = calibrations
        self._conditionals: dict[bytes, float] = {}
        self._reach: dict[bytes, float] = {tree.root: 1.0}

    def conditional(self, node: TreeNode) -> float:
        """The probability of a node given its parent: authors that drafted at the parent, by their weights."""
        if node.digest not in self._conditionals:
            self._score_siblings(node.parent)
        return self._conditionals[node.digest]

    def path_probability(self, node: TreeNode) -> float:
        """The probability that all of a node's path is committed."""
        reach = self._reach.get(node.digest)
        if reach is None:
            parent = self._tree.get(node.parent)
            above = 1.0 if parent is None else self.path_probability(parent)
            reach = self._reach[node.digest] = above * self.conditional(node)
        return reach

    def best_author(self, node: TreeNode) -> int:
        """Who is credited for a node: the author whose weighted claim is largest, the first on a tie."""
        weights = self._weights
        return max(node.claims, key=lambda author: (weights.get(author, 0.0) * node.claims[author], -author))

    def _score_siblings(self, parent: bytes) -> None:
        said = _said_at(self._tree, parent)
        total = sum(self._weights.get(author, 0.0) for author in said)
        for child in self._tree.children_of(parent).values():
            node = self._tree.get(child)
            believed = sum(
                self._weights.get(author, 0.0)
                * self._calibrations[author](claim, is_first=claim >= said[author].first)
                / said[author].total
                for author, claim in (node.claims.items() if node is not None else ())
                if author in self._calibrations
            )
            self._conditionals[child] = min(1.0, believed / total) if total > 0.0 else 0.0


@dataclass(slots=True)
class _Said:
    """What one author claimed at one prefix: its largest claim, and the sum of all, at least 1.

    Claims past 1 in all are scaled down, else naming every token as certain would look like knowing the next one.
    With `is_news` it was the first to name some token there, not only repeating others.
    """

    first: float = 0.0
    total: float = 0.0
    is_news: bool = False


def _said_at(tree: LiveTree, digest: bytes) -> dict[int, _Said]:
    """The claims of every author that drafted at a prefix."""
    said: dict[int, _Said] = {}
    for child in tree.children_of(digest).values():
        node = tree.get(child)
        for place, (author, claim) in enumerate(node.claims.items() if node is not None else ()):
            own = said.setdefault(author, _Said())
            own.first = max(own.first, claim)
            own.total += claim
            own.is_news = own.is_news or not place
    for own in said.values():
        own.total = max(1.0, own.total)
    return said
