"""Which draft nodes enter a pass: those whose expected gain exceeds what they cost everyone in it. Pure."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.curve import CostCurve
from cosine_p2p.speculation.tree import LiveTree, TreeNode

MIN_PATH_PROBABILITY: Final = 0.005
"""Bounds the work of selection: a less likely node gains less than 1/200 of a token."""


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node of the request with index `owner`, and the probability that its whole path is committed."""

    owner: int
    node: TreeNode
    path_probability: float


def candidate_nodes(
    owner: int,
    tree: LiveTree,
    *,
    max_depth: int,
    min_path_probability: float = MIN_PATH_PROBABILITY,
    fed: Container[TreeNode] = (),
) -> list[CandidateNode]:
    """Nodes of a live tree of at least this path probability, at most `max_depth` tokens deep, parents first.

    Those that were `fed` are none.
    """
    deepest = tree.position + max_depth
    found = tree.path_probabilities(lambda node: node.draft_probability if node.position < deepest else None)
    return [
        CandidateNode(owner, node, probability)
        for node, probability in found.items()
        if probability >= min_path_probability and node not in fed
    ]


def most_probable_first(candidates: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Candidates by falling path probability; a parent always comes before its children."""
    return sorted(candidates, key=lambda candidate: (-candidate.path_probability, candidate.node.position))


def free_nodes(curve: CostCurve, *, fed_tokens: int, limit: int) -> int:
    """The number of tokens, at most `limit`, that a pass takes more at no cost on the device's curve."""
    cost_s = curve.seconds(fed_tokens)
    return next((n for n in range(limit) if curve.seconds(fed_tokens + n + 1) > cost_s), limit)


def select_nodes(
    candidates: Sequence[CandidateNode],
    *,
    plain_rows: int,
    curve: CostCurve,
    budget_tokens: int,
    prompt_tokens: int = 0,
    fixed_nodes: int = 0,
) -> list[CandidateNode]:
    """The most probable candidates, as many as maximise the tokens of progress expected per second of the pass.

    A pass of `plain_rows` requests commits one token each for sure; a node adds its path probability and one
    token's cost on the device's curve. `prompt_tokens` of other requests are progress as well, which nodes delay.
    `fixed_nodes` are fed in any case. No node is chosen without its parent. This is the batch objective of CoSine
    (arXiv 2503.10325) for one verifier: its requests and nodes by expected gain per millisecond.
    """
    fed_tokens = plain_rows + prompt_tokens + fixed_nodes
    ranked = most_probable_first(candidates)[: max(0, budget_tokens - fed_tokens)]
    expected_tokens = float(plain_rows + prompt_tokens)
    best_rate = expected_tokens / curve.seconds(fed_tokens) if fed_tokens else 0.0
    best_count = 0
    for count, candidate in enumerate(ranked, 1):
        expected_tokens += candidate.path_probability
        rate = expected_tokens / curve.seconds(fed_tokens + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    return ranked[:best_count]
