"""Likely corrections: where the stream goes if the best guess is wrong, for another peer to draft (idea III)."""

from typing import Final

from cosine_p2p.speculation.fusion import FusedView
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.limits import MAX_GUESS_TOKENS

MIN_PROBABILITY: Final = 0.02


def main_line(tree: LiveTree, view: FusedView) -> list[TreeNode]:
    """The path below the root that takes the most probable child at every step."""
    line: list[TreeNode] = []
    digest = tree.root
    while children := [node for child in tree.children_of(digest).values() if (node := tree.get(child))]:
        line.append(max(children, key=lambda node: (view.conditional(node), -node.token)))
        digest = line[-1].digest
    return line


def likely_corrections(tree: LiveTree, view: FusedView, count: int) -> list[tuple[int, ...]]:
    """Up to `count` prefixes, as tokens below the root, that leave the main line by one token; the likeliest first.

    None is longer than a drafter may be asked to guess, or less likely than `MIN_PROBABILITY`.
    """
    found: list[tuple[float, tuple[int, ...]]] = []
    before: tuple[int, ...] = ()
    digest = tree.root
    for node in main_line(tree, view)[:MAX_GUESS_TOKENS]:
        for token, child in tree.children_of(digest).items():
            sibling = tree.get(child)
            if sibling is not None and token != node.token:
                found.append((view.path_probability(sibling), (*before, token)))
        before = (*before, node.token)
        digest = node.digest
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    return [path for probability, path in found[:count] if probability >= MIN_PROBABILITY]
