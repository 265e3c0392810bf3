"""Fusion: one probability for every node of the live tree, from all drafters that spoke about it.

The weighted mixture recovers the routed expert without a router, where the paper's bare max-confidence loses to
it (measured on the embedded family: drafters off their domain are confidently wrong).
"""

from collections.abc import Iterable

from cosine_p2p.speculation.calibration import Calibration
from cosine_p2p.speculation.mixture import Mixture
from cosine_p2p.tree import LiveTree, TreeNode


class Fusion:
    """Keeps weights and calibrations of the authors of one request and scores nodes with them."""

    def __init__(self) -> None:
        self.mixture = Mixture()
        self._calibrations: dict[int, Calibration] = {}

    def join(self, author: int, *, prompt_nll: float) -> None:
        """Let an author's claims count from now on."""
        self.mixture.join(author, prompt_nll=prompt_nll)
        self._calibrations.setdefault(author, Calibration())

    def leave(self, author: int) -> None:
        self.mixture.leave(author)

    def conditional(self, tree: LiveTree, node: TreeNode) -> float:
        """The probability of a node given its parent: authors that drafted at the parent, by their weights."""
        weights = self.mixture.weights()
        firsts = _first_claims(tree, node.parent)
        total = sum(weights.get(author, 0.0) for author in firsts)
        if total <= 0.0:
            return 0.0
        said = sum(
            weights.get(author, 0.0) * self._calibrations[author](claim, is_first=claim >= firsts[author])
            for author, claim in node.claims.items()
            if author in self._calibrations
        )
        return min(1.0, said / total)

    def path_probability(self, tree: LiveTree, node: TreeNode) -> float:
        """The probability that all of a node's path is committed."""
        product = 1.0
        for step in tree.path(node.digest):
            product *= self.conditional(tree, step)
        return product

    def best_author(self, node: TreeNode) -> int:
        """Who is credited for a node: the author whose weighted claim is largest, the first on a tie."""
        weights = self.mixture.weights()
        return max(node.claims, key=lambda author: (weights.get(author, 0.0) * node.claims[author], -author))

    def learn(self, tree: LiveTree, tokens: Iterable[int]) -> None:
        """Score all authors on tokens about to be committed; call before `tree.advance`."""
        digest = tree.root
        for token in tokens:
            likelihoods = self._likelihoods(tree, digest, token)
            self.mixture.observe(likelihoods)
            self._calibrate(tree, digest, token)
            child = tree.child(digest, token)
            if child is None:
                return
            digest = child.digest

    def _likelihoods(self, tree: LiveTree, digest: bytes, token: int) -> dict[int, float]:
        child = tree.child(digest, token)
        claims = {} if child is None else child.claims
        return {author: claims.get(author, 0.0) for author in _first_claims(tree, digest)}

    def _calibrate(self, tree: LiveTree, digest: bytes, token: int) -> None:
        firsts = _first_claims(tree, digest)
        for child_token, child_digest in tree.children_of(digest).items():
            node = tree.get(child_digest)
            for author, claim in node.claims.items() if node is not None else ():
                if author in self._calibrations:
                    self._calibrations[author].observe(
                        claim, is_first=claim >= firsts[author], hit=child_token == token
                    )


def _first_claims(tree: LiveTree, digest: bytes) -> dict[int, float]:
    """The largest claim of every author that drafted at a prefix."""
    firsts: dict[int, float] = {}
    for child in tree.children_of(digest).values():
        node = tree.get(child)
        for author, claim in node.claims.items() if node is not None else ():
            firsts[author] = max(claim, firsts.get(author, 0.0))
    return firsts
