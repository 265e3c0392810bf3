"""Paths are read in place where they lie in one run from the beginning of a page on; else they are gathered."""

import numpy as np
import pytest
import torch

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_plan import KEY_QUANTUM, PathPlan, stale_slots
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

TILES = RowTileSet(products=RowTiles(4, 64), attention=RowTiles(1, 64))
FORK = Row(0, (1, 2, 3, 4), (0, 1, 2, 3), (PREFIX, 0, 0, 2))


def fed(row: Row, slots: list[int]) -> tuple[SequenceTree, Row]:
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    tree.add(row, slots)
    return tree, row


def plan_of(*feeds: tuple[SequenceTree, Row], is_abandoned: bool = False) -> PathPlan:
    store = KvStore(slots=64)
    device = torch.device("cpu")
    return PathPlan(list(feeds), store=store, device=device, tiles=TILES, is_abandoned=lambda: is_abandoned)


def test_a_run_is_read_to_the_end_of_its_page_where_the_rest_is_hidden() -> None:
    [call] = plan_of(fed(Row.chain(0, [5, 6]), [16, 17])).calls(None)
    assert (call.slots.start, call.slots.count, call.slots.index) == (16, KEY_QUANTUM, None)
    bias = call.bias(torch.float32, 1)
    assert bias is not None
    assert (bias[0, 0] == 0).sum(1).tolist() == [1, 2]


@pytest.mark.parametrize("slots", [[5, 6], [16, 18], [17, 16], [63, 64]])
def test_other_slots_are_gathered_and_padded_with_a_key_of_their_own(slots: list[int]) -> None:
    [call] = plan_of(fed(Row.chain(0, [5, 6]), slots)).calls(None)
    assert call.slots.index is not None
    assert call.slots.index.tolist() == slots + slots[:1] * (KEY_QUANTUM - 2)


def test_each_path_of_a_tree_is_a_call_and_outputs_go_back_in_order() -> None:
    plan = plan_of(fed(FORK, [16, 17, 18, 19]))
    first, second = plan.calls(None)
    assert (first.queries.start, first.queries.count) == (0, 2)
    assert (second.queries.start, second.queries.count) == (2, 2)
    assert second.slots.index is not None
    assert second.slots.index[:3].tolist() == [16, 18, 19]
    assert plan.order is None


def test_a_pass_is_padded_with_its_last_token_which_is_not_written() -> None:
    plan = plan_of(fed(Row.chain(0, [5, 6, 7]), [16, 17, 18]), fed(Row.chain(1, [8, 9]), [32, 33]))
    assert plan.input_ids.tolist() == [[5, 6, 7, 8, 9, 9, 9, 9]]
    assert plan.position_ids.tolist() == [[0, 1, 2, 0, 1, 1, 1, 1]]
    assert plan.written.index is not None
    assert plan.written.index.tolist() == [16, 17, 18, 32, 33]
    assert plan.order is not None
    assert plan.order.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]


def test_an_abandoned_pass_is_stopped() -> None:
    plan_of(fed(FORK, [16, 17, 18, 19])).check()
    with pytest.raises(PassAbandoned):
        plan_of(fed(FORK, [16, 17, 18, 19]), is_abandoned=True).check()


def test_what_a_former_owner_left_in_a_page_is_stale_until_the_page_is_begun() -> None:
    tree, row = fed(Row.chain(0, [5, 6]), [16, 17])
    assert stale_slots([(tree, row)]).tolist() == list(range(16, 32))
    tree.keep(row.nodes)
    following = Row.chain(0, [7])
    tree.add(following, [18])
    assert len(stale_slots([(tree, following)])) == 0


def test_slots_in_use_are_not_stale_where_the_first_of_their_page_is_written_again() -> None:
    siblings = Row(0, (1, 2), (0, 1), (PREFIX, PREFIX))
    tree, _ = fed(siblings, [16, 17])
    tree.keep((1,))
    again = Row.chain(0, [3])
    tree.add(again, [16])
    stale = stale_slots([(tree, again)])
    assert stale.tolist() == [16, *range(18, 16 + PAGE_TOKENS)]
    assert stale.dtype == np.int64
