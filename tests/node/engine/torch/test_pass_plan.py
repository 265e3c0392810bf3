"""The plan of a pass: what each token sees, which keys are read in place, and how rows are padded."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_plan import (
    KERNEL_KEYS,
    MAX_PADDED_QUERIES,
    AttentionCall,
    AttentionMask,
    BatchShape,
    Indices,
    PassPlan,
    PathPlan,
    mask_of,
    pad,
    path_parts,
    stale_slots,
)
from cosine_node.engine.torch.row_tiles import KEY_BLOCK, RowTiles, RowTileSet
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

CPU = torch.device("cpu")


def fed(row: Row, slots: list[int]) -> tuple[SequenceTree, Row]:
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    tree.add(row, slots)
    return tree, row


def numbers(indices: Indices) -> list[int]:
    if indices.index is not None:
        return indices.index.tolist()
    return list(range(indices.start, indices.start + indices.count))


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


def random_rows(seed: int) -> Iterator[tuple[SequenceTree, Row]]:
    """A tree after each of some rows: chains below any node where the seed is even, else trees."""
    rng = random.Random(seed)
    tree = a_tree(rng.randrange(4))
    slots = iter(rng.sample(range(100), 100))
    for first in range(0, 30, 6):
        names = list(range(first, first + rng.randint(1, 6)))
        parents = []
        for number, name in enumerate(names):
            chained = [*tree.nodes, PREFIX] if number == 0 else [name - 1]
            parents.append(rng.choice([*tree.nodes, *names[:number], PREFIX] if seed % 2 else chained))
        row = Row(0, tuple(names), tuple(names), tuple(parents))
        tree.add(row, [next(slots) for _ in names])
        yield tree, row


@pytest.mark.parametrize("seed", range(30))
def test_each_token_sees_the_prefix_its_ancestors_and_itself(seed: int) -> None:
    for tree, row in random_rows(seed):
        mask = mask_of(tree, row)
        expected = [{*tree.slots, *(node.slot for node in tree.path(name))} for name in row.nodes]
        assert slots_seen(mask) == expected
        assert mask.query_indices.tolist() == [tree.nodes[name].index for name in row.nodes]
        assert set(mask.key_slots.tolist()) == set().union(*expected)


@pytest.mark.parametrize("seed", range(30))
def test_paths_hold_every_query_once_and_its_keys_in_the_order_of_their_positions(seed: int) -> None:
    for tree, row in random_rows(seed):
        seen = []
        for part in path_parts(tree, row):
            mask = part.mask
            assert mask.key_indices.tolist() == list(range(part.keys))
            for number, index, slots in zip(part.queries, mask.query_indices, slots_seen(mask), strict=True):
                path = {*tree.slots, *(node.slot for node in tree.path(row.nodes[number]))}
                assert (slots, int(index)) == (path, len(path) - 1)
            seen += part.queries.tolist()
        assert sorted(seen) == list(range(len(row.nodes)))


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


def _mask(keys: int, queries: int, first_slot: int) -> AttentionMask:
    return AttentionMask(
        np.arange(keys) + first_slot,
        np.arange(keys),
        np.arange(keys - queries, keys),
        None if queries == 1 else np.tri(queries, keys, keys - queries, dtype=np.bool_),
    )


def test_rows_keep_their_masks_in_a_rectangle_whose_padding_sees_one_key() -> None:
    one, three = _mask(70, 1, 0), _mask(9, 3, 100)
    assert BatchShape.around([one, three]) == BatchShape(sequences=2, queries=3, keys=128)
    padded = pad([one, three], BatchShape(sequences=3, queries=4, keys=128))
    assert padded.token_indices.tolist() == [0, 4, 5, 6]
    assert padded.slots[0].tolist() == [*range(70), *[0] * 58]
    assert padded.slots[1].tolist() == [*range(100, 109), *[100] * 119]
    assert not padded.hidden[0, 0, :70].any() and padded.hidden[0, 0, 70:].all()
    assert (~padded.hidden[1, :3, :9] == three.visible).all() and padded.hidden[1, :3, 9:].all()
    for row in (padded.hidden[0, 1], padded.hidden[1, 3], padded.hidden[2, 0]):
        assert not row[0] and row[1:].all()


def plan_of(*slots: list[int], pads_rows: bool = False) -> PassPlan:
    """A pass of one new sequence for each list of slots, its tokens a chain."""
    feeds = [fed(Row.chain(number, range(len(each))), each) for number, each in enumerate(slots)]
    return PassPlan(feeds, store=KvStore(slots=99), device=CPU, pads_rows=pads_rows)


def test_a_run_out_of_order_is_masked_in_the_order_it_is_read() -> None:
    [call] = plan_of([6, 4, 5]).calls(None)
    assert call.slots.index is None
    assert numbers(call.slots) == [4, 5, 6]
    bias = call.bias(torch.float32, 2)
    assert bias is not None
    # The first token is in slot 6, the second in slot 4; both groups of heads see the same.
    assert (bias[0, 0] == 0).tolist() == [[False, False, True], [True, False, True], [True, True, True]] * 2


@pytest.mark.parametrize("pads_rows", [False, True])
def test_outputs_come_back_in_the_order_of_the_pass(pads_rows: bool) -> None:
    long = list(range(20, 20 + MAX_PADDED_QUERIES + 1))
    plan = plan_of([1, 2], long, [5], [7, 8, 9], pads_rows=pads_rows)
    calls = plan.calls(None)
    # Made once for all layers of a window.
    assert calls is plan.calls(None) and calls is not plan.calls(2)
    assert len(calls) == (2 if pads_rows else 4)
    outputs = torch.tensor([token for call in calls for token in numbers(call.queries)])
    in_order = outputs if plan.order is None else outputs[plan.order]
    assert in_order.tolist() == list(range(len(plan.tokens)))
    assert plan.order is None or pads_rows


FORK = Row(0, (1, 2, 3, 4), (0, 1, 2, 3), (PREFIX, 0, 0, 2))


def path_plan_of(
    *feeds: tuple[SequenceTree, Row], is_abandoned: bool = False, slots: int = 64, hidden_keys: int = 0
) -> PathPlan:
    rows = RowTiles((1, 64))
    tiles = RowTileSet(
        products=RowTiles((4, 8, 256)), attention=rows, attention_over_blocks=rows, hidden_keys=hidden_keys
    )
    store = KvStore(slots=slots)
    return PathPlan(list(feeds), store=store, device=CPU, tiles=tiles, is_abandoned=lambda: is_abandoned)


def long_tree(prefix: int, row: Row) -> tuple[SequenceTree, Row]:
    """A row below a kept prefix of so many tokens in a run of pages."""
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
    tree.begin([1] * prefix, range(prefix))
    tree.add(row, range(prefix, prefix + len(row.nodes)))
    return tree, row


def dense_calls_of(prefix: int, row: Row, *, hidden_keys: int = 1024) -> tuple[list[AttentionCall], Tensor | None]:
    dense = path_plan_of(long_tree(prefix, row), slots=1100, hidden_keys=hidden_keys).dense_calls()
    assert dense is not None
    return list(dense.calls), dense.order


@pytest.mark.parametrize(("prefix", "calls"), [(416, 1), (470, 1), (480, 2), (509, 2), (512, 1), (1000, 2)])
def test_a_key_stays_with_those_that_the_kernel_takes_it_with_when_alone(prefix: int, calls: int) -> None:
    found, order = dense_calls_of(prefix, FORK)
    assert len(found) == calls
    assert order is None
    for call in found:
        bias = call.bias(torch.float32, 1)
        assert bias is not None
        slots = np.array(numbers(call.slots))
        for row in bias[0, 0] == 0:
            columns = row.nonzero()[:, 0].numpy()
            places = np.arange(len(columns))
            assert (columns // KERNEL_KEYS == places // KERNEL_KEYS).all()
            assert (columns % KEY_BLOCK == places % KEY_BLOCK).all()
            assert (np.diff(slots[columns]) > 0).all()


def test_an_abandoned_pass_is_stopped() -> None:
    path_plan_of(fed(FORK, [16, 17, 18, 19])).check()
    with pytest.raises(PassAbandoned):
        path_plan_of(fed(FORK, [16, 17, 18, 19]), is_abandoned=True).check()


def test_what_a_former_owner_left_in_a_page_is_stale_until_the_page_is_begun() -> None:
    tree, row = fed(Row.chain(0, [5, 6]), [16, 17])
    assert stale_slots([(tree, row)]).tolist() == list(range(16, 32))
    tree.keep(row.nodes)
    following = Row.chain(0, [7])
    tree.add(following, [18])
    assert len(stale_slots([(tree, following)])) == 0


def test_slots_in_use_are_not_stale_where_the_first_of_their_page_is_written_again() -> None:
    tree, _ = fed(Row(0, (1, 2), (0, 1), (PREFIX, PREFIX)), [16, 17])
    tree.keep((1,))
    again = Row.chain(0, [3])
    tree.add(again, [16])
    stale = stale_slots([(tree, again)])
    assert stale.tolist() == [16, *range(18, 16 + PAGE_TOKENS)]
    assert stale.dtype == np.int64
