"""Which draft nodes enter a pass: those that may, that their request can afford, and that pay for their time. Pure.

The candidates of a request are the unfed nodes of its live tree. Its account allows those that the request can
afford even if all of them are rejected, or that pay even at the client's worst acceptance rates. Of all requests
together, those are chosen that maximise the expected tokens per second. A request in debt gets only nodes that are
free, which may end its debt.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.speculation import is_planned
from cosine_p2p.strategy.tree import LiveTree, TreeNode

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
    """Unfed nodes of a live tree with at least this path probability, at most `max_depth` deep, parents first."""
    deepest = tree.position + max_depth
    found = tree.path_probabilities(lambda node: node.draft_probability if node.position < deepest else None)
    return [
        CandidateNode(owner, node, probability)
        for node, probability in found.items()
        if probability >= min_path_probability and node not in fed
    ]


def most_probable_first(candidates: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Candidates by descending path probability; a parent always comes before its children."""
    return sorted(candidates, key=lambda candidate: (-candidate.path_probability, candidate.node.position))


def allowed_nodes(
    request: VerifierRequest, own: Sequence[CandidateNode], *, fed_tokens: int, curve: CostCurve, most_tokens: int
) -> list[CandidateNode]:
    """The candidates that a request's account allows beside `fed_tokens` tokens, and all home drafts."""
    ranked = most_probable_first(own)[: max(0, most_tokens - fed_tokens)]
    planned = [one for one in ranked if request.has_home_drafts and is_planned(one.node)]
    others = [one for one in ranked if not (request.has_home_drafts and is_planned(one.node))]
    base_tokens = fed_tokens + len(planned)
    base_s = curve.seconds(base_tokens)
    most = request.account.most_nodes(
        (candidate.node for candidate in others),
        lambda nodes: curve.seconds(base_tokens + nodes) - base_s,
        plain_pass_s=curve.seconds(fed_tokens),
    )
    return planned + others[:most]


def nodes_that_pay(
    candidates: Sequence[CandidateNode], *, fed_tokens: int, curve: CostCurve, most_tokens: int
) -> list[CandidateNode]:
    """The most probable candidates that together maximise the expected tokens per second of the pass.

    The pass also feeds `fed_tokens` tokens of decoding requests and prompts; a node adds its path probability and
    one token's cost. This is the batch objective of CoSine (arXiv 2503.10325) for one verifier.
    """
    ranked = most_probable_first(candidates)[: max(0, most_tokens - fed_tokens)]
    expected_tokens = float(fed_tokens)
    best_rate = expected_tokens / curve.seconds(fed_tokens) if fed_tokens else 0.0
    best_count = 0
    for count, candidate in enumerate(ranked, 1):
        expected_tokens += candidate.path_probability
        rate = expected_tokens / curve.seconds(fed_tokens + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    return ranked[:best_count]
