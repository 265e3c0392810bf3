"""One probability for every node from all drafters that spoke about it."""

import random

import pytest

from cosine_p2p.speculation.calibration import Calibration
from cosine_p2p.speculation.fusion import Fusion
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.nodes import BASE, Node

ROOT = bytes(16)
Claims = dict[int, dict[int, float]]


def tree_of(claims: Claims, order: list[int] | None = None) -> LiveTree:
    """Children of the root by author: token -> confidence."""
    tree = LiveTree(ROOT)
    for author in order or list(claims):
        nodes = [Node(BASE, token, confidence) for token, confidence in claims[author].items()]
        tree.attach(ROOT, 0, nodes, [author] * len(nodes))
    return tree


def fusion_of(*authors: int) -> Fusion:
    fusion = Fusion()
    for author in authors:
        fusion.join(author, prompt_nll=1.0)
    return fusion


def child(tree: LiveTree, token: int) -> TreeNode:
    found = tree.child(ROOT, token)
    assert found is not None
    return found


def test_one_drafter_is_taken_at_its_calibrated_word() -> None:
    tree, fusion, calibration = tree_of({1: {5: 0.6, 6: 0.2}}), fusion_of(1), Calibration()
    assert fusion.view(tree).conditional(child(tree, 5)) == pytest.approx(calibration(0.6, is_first=True))
    assert fusion.view(tree).conditional(child(tree, 6)) == pytest.approx(calibration(0.2, is_first=False))


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_arrival_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    claims = {a: {t: rng.random() for t in rng.sample(range(5), 3)} for a in (1, 2, 3)}
    order = rng.sample([1, 2, 3], 3)
    one, other = tree_of(claims), tree_of(claims, order)
    for node in one.walk():
        ours = fusion_of(1, 2, 3).view(one).conditional(node)
        theirs = fusion_of(*order).view(other).conditional(child(other, node.token))
        assert ours == pytest.approx(theirs), f"seed {seed}"


def test_a_drafter_that_says_the_same_twice_counts_once() -> None:
    once, twice = tree_of({1: {5: 0.6}, 2: {6: 0.5}}), tree_of({1: {5: 0.6}, 2: {6: 0.5}}, [1, 1, 2, 1])
    fusion = fusion_of(1, 2)
    assert fusion.view(once).conditional(child(once, 5)) == fusion.view(twice).conditional(child(twice, 5))


def test_strangers_and_those_who_left_do_not_count() -> None:
    tree, fusion = tree_of({1: {5: 0.6}, 2: {6: 0.9}}), fusion_of(1)
    assert fusion.view(tree).conditional(child(tree, 6)) == 0.0
    alone = fusion.view(tree).conditional(child(tree, 5))
    fusion.join(2, prompt_nll=1.0)
    assert fusion.view(tree).conditional(child(tree, 5)) < alone
    fusion.leave(2)
    assert fusion.view(tree).conditional(child(tree, 5)) == pytest.approx(alone)


@pytest.mark.parametrize("seed", range(30))
def test_a_path_never_becomes_likelier_further_down(seed: int) -> None:
    rng = random.Random(seed)
    tree, fusion = LiveTree(ROOT), fusion_of(1, 2)
    for author in (1, 2, 3):
        nodes = [Node(rng.randrange(-1, i) if i else BASE, rng.randrange(3), rng.random()) for i in range(20)]
        tree.attach(ROOT, 0, nodes, [author] * len(nodes))
    for node in tree.walk():
        above = tree.get(node.parent)
        limit = 1.0 if above is None else fusion.view(tree).path_probability(above)
        assert 0.0 <= fusion.view(tree).path_probability(node) <= limit + 1e-12, f"seed {seed}"


def test_exaggeration_corrects_itself() -> None:
    fusion = fusion_of(1)
    for _ in range(40):
        fusion.learn(tree_of({1: {5: 1.0}}), [6])
    tree = tree_of({1: {5: 1.0}})
    assert fusion.view(tree).conditional(child(tree, 5)) < 0.15


def test_the_drafter_that_was_right_is_believed() -> None:
    fusion, claims = fusion_of(1, 2), {1: {5: 0.8}, 2: {6: 0.8}}
    for _ in range(10):
        fusion.learn(tree_of(claims), [5])
    tree = tree_of(claims)
    assert fusion.mixture.weights()[1] > 0.99
    assert fusion.view(tree).conditional(child(tree, 5)) > 0.8
    assert fusion.view(tree).conditional(child(tree, 6)) < 0.01


def test_the_credit_goes_to_the_largest_weighted_claim() -> None:
    tree = tree_of({2: {5: 0.6}, 1: {5: 0.6}, 3: {5: 0.7}})
    assert fusion_of(1, 2).view(tree).best_author(child(tree, 5)) == 1
    assert fusion_of(1, 2, 3).view(tree).best_author(child(tree, 5)) == 3
