"""Where the stream goes if the best guess is wrong."""

import random

import pytest

from cosine_p2p.speculation.corrections import MIN_PROBABILITY, best_path, likely_corrections
from cosine_p2p.speculation.fusion import FusedView, Fusion
from cosine_p2p.speculation.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.limits import MAX_GUESS_TOKENS
from cosine_protocol.nodes import BASE, Node

ROOT = bytes(16)


def view_of(tree: LiveTree) -> FusedView:
    return Fusion().view(tree, {1: 1.0})


def tree_of(*nodes: Node) -> LiveTree:
    tree = LiveTree(ROOT)
    tree.attach(ROOT, 0, nodes, [1] * len(nodes))
    return tree


def test_the_likeliest_departures_from_the_best_path_come_first() -> None:
    tree = tree_of(Node(BASE, 1, 0.8), Node(BASE, 2, 0.15), Node(0, 3, 0.6), Node(0, 4, 0.3))
    assert [node.token for node in best_path(tree, view_of(tree))] == [1, 3]
    assert likely_corrections(tree, view_of(tree), 5) == [(1, 4), (2,)]
    assert likely_corrections(tree, view_of(tree), 1) == [(1, 4)]


def test_an_empty_tree_and_a_chain_have_none() -> None:
    for tree in (tree_of(), tree_of(Node(BASE, 1, 0.9), Node(0, 2, 0.9))):
        assert likely_corrections(tree, view_of(tree), 3) == []


@pytest.mark.parametrize("seed", range(40))
def test_each_is_in_the_tree_and_leaves_the_best_path_by_its_last_token(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [Node(rng.randrange(-1, i) if i else BASE, rng.randrange(4), rng.random()) for i in range(60)]
    tree = tree_of(*nodes)
    view = view_of(tree)
    line = tuple(node.token for node in best_path(tree, view))
    reached = []
    for guess in likely_corrections(tree, view, 6):
        node = tree.get(roll_digest(ROOT, guess))
        assert node is not None, f"seed {seed}"
        assert len(guess) <= MAX_GUESS_TOKENS, f"seed {seed}"
        assert guess[:-1] == line[: len(guess) - 1], f"seed {seed}"
        assert guess[-1] != line[len(guess) - 1], f"seed {seed}"
        reached.append(view.path_probability(node))
    assert reached == sorted(reached, reverse=True), f"seed {seed}"
    assert all(probability >= MIN_PROBABILITY for probability in reached), f"seed {seed}"
