"""The draft nodes that may enter a pass, and their order. Pure."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

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
