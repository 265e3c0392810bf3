"""An upper bound on deciding what to forward: a coordinator that knows what the target will say.

It is ours in everything else. Whatever a drafter drafted is worth 1 if it lies on the target's stream and 0 if
not, so nothing wrong is ever sent. What drafters draft and when it arrives stays as it is; what a bound on that
would need, drafters that know the stream too, `Scenario.is_oracle` gives.
"""

from collections.abc import Collection, Sequence

from cosine_lab.experiments.ablated import AblatedCosine, AblatedOptions
from cosine_p2p.strategy.fusion import FusedView
from cosine_p2p.strategy.tree import TreeNode
from cosine_protocol.digests import extend_digest


class OracleView(FusedView):
    """Nodes on the stream are certain, all others impossible. Credit goes to the first of a node's authors."""

    def __init__(self, truth: Collection[bytes]) -> None:
        self._truth = truth

    def conditional(self, node: TreeNode) -> float:
        return float(node.digest in self._truth)

    def path_probability(self, node: TreeNode) -> float:
        return self.conditional(node)

    def best_author(self, node: TreeNode) -> int:
        return min(node.draft_probabilities)


class OracleCosine(AblatedCosine):
    """`stream` is all that the target will write after the prefix whose digest is `root`."""

    def __init__(self, root: bytes, *, stream: Sequence[int], options: AblatedOptions | None = None) -> None:
        super().__init__(root, options=options)
        digests = [root]
        for token in stream:
            digests.append(extend_digest(digests[-1], token))
        self._oracle = OracleView(frozenset(digests[1:]))

    def _view(self) -> FusedView:
        return self._oracle
