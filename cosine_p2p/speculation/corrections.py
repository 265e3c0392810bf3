"""Likely corrections: where the stream goes if the best path is wrong, for another drafter to draft below."""

from typing import Final

from cosine_p2p.speculation.fusion import FusedView
from cosine_p2p.speculation.tree import LiveTree, TreeNode
from cosine_protocol.limits import MAX_GUESS_TOKENS

MIN_PROBABILITY: Final = 0.02
"""A choice: a less likely correction would hardly ever be committed before the next commit moves everything."""


def best_path(tree: LiveTree, view: FusedView) -> list[TreeNode]:
    """The path below the root that takes the most probable child at every step."""
    return tree.best_path(lambda node: (view.conditional(node), -node.token))


def likely_corrections(tree: LiveTree, view: FusedView, count: int) -> list[tuple[int, ...]]:
    """Up to `count` prefixes, as tokens below the root, that leave the best path by one token; likeliest first.

    None is longer than a drafter may be asked to guess, or less likely than `MIN_PROBABILITY`.
    """
    found: list[tuple[float, tuple[int, ...]]] = []
    before: tuple[int, ...] = ()
    parent = tree.root
    for node in best_path(tree, view)[:MAX_GUESS_TOKENS]:
        siblings = [sibling for sibling in parent.children.values() if sibling is not node]
        found += [(view.path_probability(sibling), (*before, sibling.token)) for sibling in siblings]
        before, parent = (*before, node.token), node
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    return [path for probability, path in found[:count] if probability >= MIN_PROBABILITY]
