"""The plan of a pass: what each token sees, which keys are read in place, and how rows are padded."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_plan import (
    KEY_QUANTUM,
    MAX_PADDED_QUERIES,
    PREFIX_QUANTUM,
    AttentionMask,
    BatchShape,
    Indices,
    PassPlan,
    PathPlan,
    bucket_of,
    mask_of,
    masks_by_path,
    pad,
    prefix_keys,
    stale_slots,
)
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet
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
        for queries, mask in masks_by_path(tree, row):
            assert mask.key_indices.tolist() == list(range(len(mask.key_slots)))
            for number, index, slots in zip(queries, mask.query_indices, slots_seen(mask), strict=True):
                path = {*tree.slots, *(node.slot for node in tree.path(row.nodes[number]))}
                assert (slots, int(index)) == (path, len(path) - 1)
            seen += queries.tolist()
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


@pytest.mark.parametrize(
    ("shape", "fit"),
    [
        ((1, 1, 64), (1, 1, 128)),
        ((3, 2, 192), (4, 2, 192)),
        ((5, 5, 320), (8, 8, 384)),
        ((64, 1, 1024), (64, 1, 1024)),
        ((33, 2, 64), None),
        ((1, 17, 64), None),
    ],
)
def test_a_pass_takes_the_next_larger_shape(shape: tuple[int, int, int], fit: tuple[int, int, int] | None) -> None:
    found = bucket_of(BatchShape(sequences=shape[0], queries=shape[1], keys=shape[2]))
    expected = None if fit is None else BatchShape(sequences=fit[0], queries=fit[1], keys=fit[2])
    assert found == expected


def plan_of(*slots: list[int], pads_rows: bool = False) -> PassPlan:
    """A pass of one new sequence for each list of slots, its tokens a chain."""
    feeds = [fed(Row.chain(number, range(len(each))), each) for number, each in enumerate(slots)]
    return PassPlan(feeds, store=KvStore(slots=99), device=CPU, pads_rows=pads_rows)


def test_a_decode_from_one_run_of_slots_needs_neither_mask_nor_index() -> None:
    run, scattered = plan_of([4]).calls(None)[0], plan_of([4, 9, 2]).calls(None)[0]
    assert run.is_contiguous_decode and run.is_decode
    assert run.bias(torch.float32, 2) is None
    assert not scattered.is_decode
    assert numbers(scattered.slots) == [4, 9, 2]


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


def test_one_short_row_is_not_padded() -> None:
    plan = plan_of([3, 4], list(range(20, 40)), pads_rows=True)
    assert plan.order is None
    assert [call.sequences for call in plan.calls(None)] == [1, 1]


FORK = Row(0, (1, 2, 3, 4), (0, 1, 2, 3), (PREFIX, 0, 0, 2))


def path_plan_of(*feeds: tuple[SequenceTree, Row], is_abandoned: bool = False, slots: int = 64) -> PathPlan:
    tiles = RowTileSet(products=RowTiles((4, 8)), attention=RowTiles((1, 64)))
    store = KvStore(slots=slots)
    return PathPlan(list(feeds), store=store, device=CPU, tiles=tiles, is_abandoned=lambda: is_abandoned)


def test_a_run_is_read_to_the_end_of_its_page_where_the_rest_is_hidden() -> None:
    [call] = path_plan_of(fed(Row.chain(0, [5, 6]), [16, 17])).calls(None)
    assert (call.slots.start, call.slots.count, call.slots.index) == (16, KEY_QUANTUM, None)
    bias = call.bias(torch.float32, 1)
    assert bias is not None
    assert (bias[0, 0] == 0).tolist() == [
        [True] + [False] * (KEY_QUANTUM - 1),
        [True] * 2 + [False] * (KEY_QUANTUM - 2),
    ]


@pytest.mark.parametrize("slots", [[5, 6], [16, 18], [17, 16], [63, 64]])
def test_other_slots_are_gathered_and_padded_with_a_key_of_their_own(slots: list[int]) -> None:
    [call] = path_plan_of(fed(Row.chain(0, [5, 6]), slots)).calls(None)
    assert call.slots.index is not None
    assert call.slots.index.tolist() == slots + slots[:1] * (KEY_QUANTUM - 2)


def test_each_path_of_a_tree_is_a_call_and_outputs_go_back_in_order() -> None:
    plan = path_plan_of(fed(FORK, [16, 17, 18, 19]))
    first, second = plan.calls(None)
    assert (first.queries.start, first.queries.count) == (0, 2)
    assert (second.queries.start, second.queries.count) == (2, 2)
    assert second.slots.index is not None
    assert second.slots.index[:3].tolist() == [16, 18, 19]
    assert plan.order is None


def long_tree(prefix: int, row: Row) -> tuple[SequenceTree, Row]:
    """A row below a kept prefix of so many tokens in a run of pages."""
    tree, before = fed(Row.chain(0, [1] * prefix), list(range(prefix)))
    tree.keep(before.nodes)
    tree.add(row, range(prefix, prefix + len(row.nodes)))
    return tree, row


def test_the_paths_of_a_tree_share_the_call_over_the_prefix() -> None:
    [split] = path_plan_of(long_tree(556, FORK), slots=700).splits()
    assert split.prefix is not None
    assert (numbers(split.prefix.slots), split.prefix.queries.count) == (list(range(512)), 4)
    [tail] = split.tails
    assert tail.sequences == 2
    assert numbers(tail.slots) == [
        *(*range(512, 558), *(512,) * 2),
        *(*range(512, 557), 558, 559, 512),
    ]
    assert split.order is None


def test_a_token_alone_reads_both_parts_where_they_are() -> None:
    [split] = path_plan_of(long_tree(556, Row.chain(0, [1])), slots=700).splits()
    assert split.prefix is not None
    assert (split.prefix.slots.index, split.prefix.slots.count) == (None, 512)
    assert [(call.slots.start, call.slots.count, call.slots.index) for call in split.tails] == [(512, 48, None)]


def test_queries_that_pad_a_path_are_left_out_of_the_order() -> None:
    [split] = path_plan_of(long_tree(20, Row(0, (1, 2, 3, 4), (0, 1, 2, 3), (PREFIX, PREFIX, 1, 2)))).splits()
    assert split.prefix is None
    [tail] = split.tails
    assert numbers(tail.queries) == [0, 0, 0, 1, 2, 3]
    assert split.order is not None
    assert split.order.tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize("keys", range(KEY_QUANTUM, 1200, KEY_QUANTUM))
def test_a_prefix_depends_on_the_number_of_keys_and_lies_before_a_tree(keys: int) -> None:
    assert prefix_keys(keys) in range(0, max(1, keys - KEY_QUANTUM), PREFIX_QUANTUM)


def test_a_pass_is_padded_with_its_last_token_which_is_not_written() -> None:
    plan = path_plan_of(fed(Row.chain(0, [5, 6, 7]), [16, 17, 18]), fed(Row.chain(1, [8, 9]), [32, 33]))
    assert plan.input_ids.tolist() == [[5, 6, 7, 8, 9, 9, 9, 9]]
    assert plan.position_ids.tolist() == [[0, 1, 2, 0, 1, 1, 1, 1]]
    assert numbers(plan.written) == [16, 17, 18, 32, 33]
    assert plan.order is not None
    assert plan.order.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]


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
