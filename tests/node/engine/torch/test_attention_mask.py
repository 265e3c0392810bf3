"""Masks say of each token what its path says: it sees the prefix, its ancestors and itself, and no other branch."""

import random

import numpy as np
import pytest

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch.pass_plan import AttentionMask, mask_of, masks_by_path
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling


def slots_seen(mask: AttentionMask) -> list[set[int]]:
    """The slots that each query sees."""
    if mask.visible is None:
        return [set(mask.key_slots.tolist())]
    return [set(mask.key_slots[row].tolist()) for row in mask.visible]


def a_tree(prefix_tokens: int) -> SequenceTree:
    """A sequence that has kept some tokens, in slots that count down."""
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    tree.begin([7] * prefix_tokens, range(1000, 1000 - prefix_tokens, -1))
    return tree


def test_a_single_token_sees_everything_before_it() -> None:
    tree = a_tree(3)
    row = Row.chain(0, [5])
    tree.add(row, [8])
    mask = mask_of(tree, row)
    assert mask.visible is None
    assert (mask.key_slots.tolist(), mask.key_indices.tolist()) == ([1000, 999, 998, 8], [0, 1, 2, 3])
    assert mask.query_indices.tolist() == [3]


@pytest.mark.parametrize("seed", range(30))
def test_each_token_sees_the_prefix_its_ancestors_and_itself(seed: int) -> None:
    rng = random.Random(seed)
    tree = a_tree(rng.randrange(4))
    slots = iter(rng.sample(range(100), 100))
    for first in range(0, 30, 6):
        names = list(range(first, first + rng.randint(1, 6)))
        parents = []
        for number, name in enumerate(names):
            chained = [*tree.nodes, PREFIX] if number == 0 else [name - 1]
            parents.append(rng.choice(chained if seed % 2 else [*tree.nodes, *names[:number], PREFIX]))
        row = Row(0, tuple(names), tuple(names), tuple(parents))
        tree.add(row, [next(slots) for _ in names])
        mask = mask_of(tree, row)
        expected = [{*tree.slots, *(node.slot for node in tree.path(name))} for name in names]
        assert slots_seen(mask) == expected
        assert mask.query_indices.tolist() == [tree.nodes[name].index for name in names]
        assert set(mask.key_slots.tolist()) == set().union(*expected)


def test_a_window_hides_what_is_further_back_and_drops_what_nobody_sees() -> None:
    tree = a_tree(6)
    row = Row.chain(0, [1, 2, 3])
    tree.add(row, [0, 1, 2])
    mask = mask_of(tree, row)
    assert mask.within(None) is mask.within(9) is mask
    near = mask.within(3)
    assert slots_seen(near) == [{996, 995, 0}, {995, 0, 1}, {0, 1, 2}]
    assert near.key_indices.tolist() == [4, 5, 6, 7, 8]
    one = AttentionMask(np.arange(9), np.arange(9), np.array([8]), None).within(4)
    assert (one.visible, one.key_slots.tolist()) == (None, [5, 6, 7, 8])


@pytest.mark.parametrize("seed", range(20))
def test_paths_hold_every_query_once_and_its_keys_in_the_order_of_their_positions(seed: int) -> None:
    rng = random.Random(seed)
    tree = a_tree(rng.randrange(4))
    slots = iter(rng.sample(range(100), 100))
    for first in range(0, 24, 8):
        names = list(range(first, first + rng.randint(1, 8)))
        parents = [rng.choice([*tree.nodes, *names[:number], PREFIX]) for number in range(len(names))]
        row = Row(0, tuple(names), tuple(names), tuple(parents))
        tree.add(row, [next(slots) for _ in names])
        seen = []
        for queries, mask in masks_by_path(tree, row):
            assert mask.visible is not None
            assert mask.key_indices.tolist() == list(range(len(mask.key_slots)))
            for number, query_index, sees in zip(queries, mask.query_indices, mask.visible, strict=True):
                path = [*tree.slots, *(node.slot for node in tree.path(names[number]))]
                assert mask.key_slots[sees].tolist() == path
                assert (sees.sum(), query_index) == (len(path), len(path) - 1)
            seen += queries.tolist()
        assert sorted(seen) == list(range(len(names)))
