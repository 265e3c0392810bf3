"""Blocks hold whole paths: whoever knows the base can attach every node."""

import random

import pytest

from cosine_p2p.strategy.tree import Block, LiveTree, TreeNode, block_below, chain_block, connected
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node

ROOT = bytes(16)


def grown(rng: random.Random, *, nodes: int) -> LiveTree:
    tree = LiveTree(ROOT)
    for author in (1, 2):
        block = [Node(rng.randrange(-1, index), rng.randrange(3), rng.random()) for index in range(nodes)]
        tree.attach(ROOT, 0, block, [author] * nodes)
    return tree


def credit(node: TreeNode) -> tuple[int, float]:
    return node.most_confident_author(), node.draft_probability


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_wanted_attaches_where_the_base_is_known(seed: int) -> None:
    rng = random.Random(seed)
    tree, there = grown(rng, nodes=30), LiveTree(ROOT)
    live = list(tree.walk())
    for _ in range(5):
        wanted = rng.sample(live, rng.randrange(1, len(live)))
        base, nodes = connected(tree, wanted, is_known=lambda node: node.digest in there)
        block = block_below(base, nodes, credit)
        there.attach(block.base, block.position, block.nodes, block.authors)
        assert all(node.digest in there for node in wanted), f"seed {seed}"
    assert {node.digest for node in there.walk()} <= {node.digest for node in live}


def test_the_base_is_the_deepest_prefix_that_all_share() -> None:
    tree = LiveTree(ROOT)
    tree.attach(ROOT, 0, [Node(BASE, 1, 0.5), Node(0, 2, 0.5), Node(1, 3, 0.5), Node(1, 4, 0.5)], [1] * 4)
    one, two, three, four = tree.walk()
    assert connected(tree, [three, four]) == (two, [three, four])
    assert connected(tree, [two]) == (one, [two])
    assert connected(tree, [three, four], is_known=lambda node: node is one) == (one, [two, three, four])


def test_a_block_holds_no_more_than_the_wire_allows() -> None:
    tree = LiveTree(ROOT)
    for start in (0, 200):
        tree.attach(ROOT, 0, [Node(BASE, token, 0.5) for token in range(start, start + 200)], [1] * 200)
    assert len(connected(tree, list(tree.walk()))[1]) == MAX_BLOCK_NODES


def test_a_chain_hangs_together() -> None:
    chain = chain_block(ROOT, 3, [(7, 1.0, 0), (8, 0.5, 2)])
    assert chain == Block(ROOT, 3, (Node(BASE, 7, 1.0), Node(0, 8, 0.5)), (0, 2))
    assert chain_block(ROOT, 0, []).nodes == ()
