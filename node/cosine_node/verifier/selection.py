"""Which draft nodes enter a pass: those whose expected gain exceeds what they cost everyone in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_node.engine.curve import CostCurve
from cosine_p2p.speculation.tree import LiveTree, TreeNode

MIN_GAIN = 0.005


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node of request `owner`, with the probability that its whole path is committed."""

    owner: int
    node: TreeNode
    probability: float


def candidates_of(owner: int, tree: LiveTree, *, max_depth: int, min_gain: float = MIN_GAIN) -> list[Candidate]:
    """Nodes of a live tree whose path has `min_gain` probability and at most `max_depth` tokens, parents first."""
    deepest = tree.position + max_depth
    found = tree.path_probabilities(lambda node: node.draft_probability if node.position < deepest else None)
    return [Candidate(owner, node, probability) for node, probability in found.items() if probability >= min_gain]


def rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The most probable first; a parent always comes before its children."""
    return sorted(candidates, key=lambda c: (-c.probability, c.node.position))


def free_nodes(curve: CostCurve, *, fed_tokens: int, limit: int) -> int:
    """How many more tokens a pass takes at no cost on the device's curve, at most `limit`."""
    cost_s = curve.seconds(fed_tokens)
    return next((n for n in range(limit) if curve.seconds(fed_tokens + n + 1) > cost_s), limit)


def select_nodes(
    candidates: Sequence[Candidate],
    *,
    plain_rows: int,
    curve: CostCurve,
    budget_tokens: int,
    prompt_tokens: int = 0,
    fixed_nodes: int = 0,
) -> list[Candidate]:
    """The most probable candidates, as many as maximise the tokens of progress expected per second of the pass.

    A pass of `plain_rows` requests commits one token each for sure; a node adds its path's probability and one
    token's cost on the device's curve. `prompt_tokens` of other requests are progress as well, which nodes delay.
    `fixed_nodes` are fed in any case. No node is chosen without its parent.
    """
    fed = plain_rows + prompt_tokens + fixed_nodes
    ranked = rank(candidates)[: max(0, budget_tokens - fed)]
    expected = float(plain_rows + prompt_tokens)
    best_rate = expected / curve.seconds(fed)
    best_count = 0
    for count, candidate in enumerate(ranked, 1):
        expected += candidate.probability
        rate = expected / curve.seconds(fed + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    return ranked[:best_count]
