"""Tests of the probabilities of drafted nodes."""

import random

import pytest

from cosine_p2p.strategy.fusion import FusedView, Fusion
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.draft import BASE, Node

ROOT = bytes(16)
Drafts = dict[int, dict[int, float]]


def tree_of(drafts: Drafts, order: list[int] | None = None) -> LiveTree:
    """Children of the root by author: token -> confidence."""
    tree = LiveTree(ROOT)
    for author in order or list(drafts):
        nodes = [Node(BASE, token, confidence) for token, confidence in drafts[author].items()]
        tree.attach(ROOT, 0, nodes, [author] * len(nodes))
    return tree


def view_of(tree: LiveTree, *authors: int) -> FusedView:
    return Fusion().view(tree, dict.fromkeys(authors, 1.0 / len(authors)))


def child(tree: LiveTree, token: int) -> TreeNode:
    return tree.root.children[token]


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_arrival_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    drafts = {a: {t: rng.random() for t in rng.sample(range(5), 3)} for a in (1, 2, 3)}
    order = rng.sample([1, 2, 3], 3)
    one, other = tree_of(drafts), tree_of(drafts, order)
    for node in one.walk():
        ours = view_of(one, 1, 2, 3).conditional(node)
        theirs = view_of(other, *order).conditional(child(other, node.token))
        assert ours == pytest.approx(theirs), f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_a_path_never_becomes_likelier_further_down(seed: int) -> None:
    rng = random.Random(seed)
    tree = LiveTree(ROOT)
    for author in (1, 2, 3):
        nodes = [Node(rng.randrange(-1, i) if i else BASE, rng.randrange(3), rng.random()) for i in range(20)]
        tree.attach(ROOT, 0, nodes, [author] * len(nodes))
    view = view_of(tree, 1, 2)
    for node in tree.walk():
        assert node.parent is not None
        limit = view.path_probability(node.parent)
        assert 0.0 <= view.path_probability(node) <= limit + 1e-12, f"seed {seed}"


def test_exaggeration_corrects_itself() -> None:
    fusion = Fusion()
    for _ in range(60):
        drafted = tree_of({1: {5: 1.0}})
        fusion.view(drafted, {1: 1.0})
        fusion.learn(drafted, [6])
    tree = tree_of({1: {5: 1.0}})
    assert fusion.view(tree, {1: 1.0}).conditional(child(tree, 5)) < 0.15


def test_what_everyone_said_of_the_committed_tokens_is_told() -> None:
    tree = tree_of({1: {5: 0.8}, 2: {6: 0.5, 7: 0.25}})
    tree.attach(child(tree, 5).digest, 1, [Node(BASE, 8, 0.75)], [1])
    assert Fusion().learn(tree, [5, 8, 9]) == ({1: 0.8, 2: 0.0}, {1: 0.75}, {})


def test_to_repeat_what_others_drafted_before_is_not_to_speak() -> None:
    tree = tree_of({1: {5: 0.8, 6: 0.1}, 2: {5: 1.0}, 3: {6: 0.1}})
    [likelihoods] = Fusion().learn(tree, [5])
    assert likelihoods == pytest.approx({1: 0.8})
