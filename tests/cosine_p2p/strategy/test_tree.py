"""Tests of the live tree."""

import random
from collections.abc import Sequence

import pytest

from cosine_p2p.strategy.tree import MAX_LIVE_NODES, MAX_WAITING_BLOCKS, LiveTree, block_below, connected
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import BASE, MAX_BLOCK_NODES, MAX_TREE_DEPTH, Node

ROOT = bytes(16)
Shape = dict[bytes, tuple[bytes, int, int, tuple[tuple[int, float], ...]]]
Block = tuple[bytes, int, tuple[Node, ...], tuple[int, ...]]


def chain(tokens: Sequence[int], confidence: float = 0.5) -> tuple[Node, ...]:
    return tuple(Node(index - 1 if index else BASE, token, confidence) for index, token in enumerate(tokens))


def shape(tree: LiveTree) -> Shape:
    return {
        n.digest: (
            n.parent.digest if n.parent else b"",
            n.token,
            n.position,
            tuple(sorted(n.draft_probabilities.items())),
        )
        for n in tree.walk()
    }


def attach(tree: LiveTree, tokens: Sequence[int], *, after: Sequence[int] = (), author: int = 1) -> int:
    """Attach a chain after a path below `ROOT` and return the number of changed nodes."""
    base = roll_digest(ROOT, after)
    return len(tree.attach(base, len(after), chain(tokens), [author] * len(tokens)))


def random_blocks(rng: random.Random) -> list[Block]:
    """Blocks over few tokens, so that they overlap; an author gives a node one probability, always the same."""
    blocks = []
    for author in (1, 2, 3):
        for _ in range(6):
            after = [rng.randrange(2) for _ in range(rng.randrange(4))]
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
            nodes = chain(tokens, author / 4)
            blocks.append((roll_digest(ROOT, after), len(after), nodes, (author,) * len(nodes)))
    root = (ROOT, 0, chain([0], 0.25), (1,))
    return [*blocks, root]


@pytest.mark.parametrize("seed", range(5))
def test_order_and_duplicates_do_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    blocks = random_blocks(rng)
    trees = []
    for _ in range(3):
        order = rng.sample(blocks, len(blocks)) + rng.choices(blocks, k=5)
        tree = LiveTree(ROOT)
        for block in order:
            tree.attach(*block)
        trees.append(shape(tree))
    assert trees[0] == trees[1] == trees[2], f"seed {seed}"


@pytest.mark.parametrize("seed", range(5))
def test_delay_past_commits_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    blocks = random_blocks(rng)
    tokens = [rng.randrange(2) for _ in range(3)]
    early = LiveTree(ROOT)
    for block in blocks:
        early.attach(*block)
    early.advance(tokens)
    late = LiveTree(ROOT)
    left = rng.sample(blocks, len(blocks))
    for token in tokens:
        for _ in range(rng.randrange(6)):
            if left:
                late.attach(*left.pop())
        late.advance([token])
    for block in left:
        late.attach(*block)
    assert set(shape(early)) <= set(shape(late)), f"seed {seed}"
    assert (early.root.digest, early.position) == (late.root.digest, late.position), f"seed {seed}"


def test_what_waits_is_bounded_and_the_oldest_goes() -> None:
    tree = LiveTree(ROOT)
    for token in range(MAX_WAITING_BLOCKS + 1):
        attach(tree, [7], after=[token])
    attach(tree, [0])
    assert len(tree) == 1
    attach(tree, [1])
    assert len(tree) == 3


def test_depth_and_number_are_bounded() -> None:
    deep = LiveTree(ROOT)
    attach(deep, [1] * (MAX_TREE_DEPTH + 10))
    assert len(deep) == MAX_TREE_DEPTH
    wide = LiveTree(ROOT)
    for start in range(0, 2 * MAX_LIVE_NODES, 200):
        wide.attach(ROOT, 0, [Node(BASE, token, 0.5) for token in range(start, start + 200)], [1] * 200)
    assert len(wide) == MAX_LIVE_NODES


def grown(rng: random.Random, *, nodes: int) -> LiveTree:
    tree = LiveTree(ROOT)
    for author in (1, 2):
        block = [Node(rng.randrange(-1, index), rng.randrange(3), rng.random()) for index in range(nodes)]
        tree.attach(ROOT, 0, block, [author] * nodes)
    return tree


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_wanted_attaches_where_the_base_is_known(seed: int) -> None:
    rng = random.Random(seed)
    tree, there = grown(rng, nodes=30), LiveTree(ROOT)
    live = list(tree.walk())
    for _ in range(5):
        wanted = rng.sample(live, rng.randrange(1, len(live)))
        base, nodes = connected(tree, wanted, is_known=lambda node: node.digest in there)
        block = block_below(base, nodes, lambda node: (node.most_confident_author(), node.draft_probability))
        there.attach(block.base, block.position, block.nodes, block.authors)
        assert all(node.digest in there for node in wanted), f"seed {seed}"
    assert {node.digest for node in there.walk()} <= {node.digest for node in live}


def test_a_block_holds_no_more_than_the_wire_allows() -> None:
    tree = LiveTree(ROOT)
    for start in (0, 200):
        tree.attach(ROOT, 0, [Node(BASE, token, 0.5) for token in range(start, start + 200)], [1] * 200)
    assert len(connected(tree, list(tree.walk()))[1]) == MAX_BLOCK_NODES
