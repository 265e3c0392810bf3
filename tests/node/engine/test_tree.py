"""A kept prefix and the tree below it: rows are checked, and keeping or pruning drops what no longer has a path."""

import random
from dataclasses import replace

import pytest

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from tests.node.engine.recited import chain

FORK = Row(0, (1, 2, 3, 4), (0, 1, 2, 3), (PREFIX, 0, 0, 1))


def tree_of(*rows: Row) -> SequenceTree:
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    for row in rows:
        tree.check(row, vocab_tokens=10, context_tokens=8)
        tree.add(row, [100 + name for name in row.nodes])
    return tree


def test_indices_go_on_from_the_prefix_along_each_path() -> None:
    tree = tree_of(FORK)
    assert [tree.nodes[name].index for name in range(4)] == [0, 1, 1, 2]
    tree.keep([0])
    tree.add(chain(0, [5], first=9, parent=2), [0])
    tree.add(chain(0, [6], first=10), [0])
    assert [tree.nodes[name].index for name in (2, 3, 9, 10)] == [1, 2, 2, 1]
    assert tree.tokens_to(9) == [1, 3, 5]
    assert tree.tokens_to(PREFIX) == [1]


def test_keep_moves_a_path_into_the_prefix_and_drops_the_other_branches() -> None:
    tree = tree_of(FORK, chain(0, [7], first=4))
    assert {node.slot for node in tree.keep([0, 1])} == {102, 104}
    assert (tree.tokens.tolist(), tree.slots.tolist()) == ([1, 2], [100, 101])
    assert {name: node.parent for name, node in tree.nodes.items()} == {3: PREFIX}
    assert tree.keep([]) == []


@pytest.mark.parametrize("path", [[1], [0, 3], [0, 9], [0, 1, 2]])
def test_only_a_chain_of_live_nodes_is_kept(path: list[int]) -> None:
    tree = tree_of(FORK)
    with pytest.raises(LocalProtocolError):
        tree.keep(path)
    assert (tree.live_tokens, len(tree.tokens)) == (4, 0)


def test_prune_drops_what_descends_and_ignores_unknown_names() -> None:
    tree = tree_of(FORK)
    assert {node.slot for node in tree.prune([1, 77])} == {101, 103}
    assert sorted(tree.nodes) == [0, 2]
    assert tree.prune([1]) == []


GOOD = Row(0, (5, 6), (8, 9), (2, 8))


@pytest.mark.parametrize(
    "row",
    [
        replace(GOOD, tokens=(5,)),
        Row(0, (), (), ()),
        replace(GOOD, scored_from=3),
        replace(GOOD, parents=(2, 2), wants_nll=True),
        replace(GOOD, tokens=(5, 10)),
        replace(GOOD, tokens=(-1, 5)),
        replace(GOOD, nodes=(8, 8)),
        replace(GOOD, nodes=(8, 3)),
        replace(GOOD, nodes=(-2, 9)),
        replace(GOOD, parents=(9, 8)),
        replace(GOOD, parents=(7, 8)),
        chain(0, [1] * 6, first=8, parent=3),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(row: Row) -> None:
    tree = tree_of(FORK)
    tree.check(GOOD, vocab_tokens=10, context_tokens=8)
    tree.check(chain(0, [1] * 5, first=8, parent=3), vocab_tokens=10, context_tokens=8)
    with pytest.raises(LocalProtocolError):
        tree.check(row, vocab_tokens=10, context_tokens=8)


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_agree_with_lists_of_whole_texts(seed: int) -> None:
    rng = random.Random(seed)
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
    prefix: list[int] = []
    texts: dict[int, list[int]] = {}
    for name in range(120):
        parent = rng.choice([PREFIX, *texts])
        tree.add(Row(0, (name,), (name,), (parent,)), [name])
        texts[name] = [*(prefix if parent == PREFIX else texts[parent]), name]
        if rng.random() < 0.1:
            end = texts[rng.choice(list(texts))]
            path = end[len(prefix) :]
            dropped = tree.keep(path)
            prefix = end
            left = {node: text for node, text in texts.items() if text[: len(end)] == end and text != end}
            assert len(texts) == len(left) + len(path) + len(dropped)
            texts = left
        elif rng.random() < 0.2:
            top = rng.choice(list(texts))
            tree.prune([top])
            texts = {node: text for node, text in texts.items() if top not in text}
        assert tree.tokens.tolist() == prefix
        assert {node: tree.tokens_to(node) for node in tree.nodes} == texts
        assert all(tree.nodes[node].index == len(text) - 1 for node, text in texts.items())
