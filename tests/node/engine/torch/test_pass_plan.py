"""A plan reads keys in place where it can, pads short rows where it should, and puts outputs back in order."""

import numpy as np
import pytest
import torch

from cosine_node.engine.base import PassAbandoned, Row
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_plan import MAX_PADDED_QUERIES, Indices, PassPlan
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

CPU = torch.device("cpu")


def plan_of(*slots: list[int], pads_rows: bool = False, is_abandoned: bool = False) -> PassPlan:
    """A pass of one new sequence for each list of slots, its tokens a chain."""
    feeds = []
    for number, row_slots in enumerate(slots):
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
        row = Row.chain(number, range(len(row_slots)))
        tree.add(row, row_slots)
        feeds.append((tree, row))
    return PassPlan(
        feeds, store=KvStore(slots=99), device=CPU, pads_rows=pads_rows, is_abandoned=lambda: is_abandoned
    )


def numbers(indices: Indices) -> list[int]:
    if indices.index is not None:
        return indices.index.tolist()
    return list(range(indices.start, indices.start + indices.count))


@pytest.mark.parametrize(
    ("listed", "is_run"), [([3, 4, 5], True), ([7], True), ([3, 5, 4], False), ([3, 5], False)]
)
def test_a_run_needs_no_index(listed: list[int], is_run: bool) -> None:
    indices = Indices.of(np.array(listed), CPU)
    assert (indices.index is None) == is_run
    assert numbers(indices) == listed


def test_a_decode_from_one_run_of_slots_needs_neither_mask_nor_index() -> None:
    run, scattered = plan_of([4]).calls(None)[0], plan_of([4, 9, 2]).calls(None)[0]
    assert run.is_contiguous_decode and run.is_decode
    assert run.bias(torch.float32, 2) is None
    assert not scattered.is_decode
    assert numbers(scattered.slots) == [4, 9, 2]


def test_a_run_out_of_order_is_masked_in_the_order_it_is_read() -> None:
    [call] = plan_of([6, 4, 5]).calls(None)
    assert numbers(call.slots) == [4, 5, 6]
    bias = call.bias(torch.float32, 2)
    assert bias is not None
    sees = bias[0, 0] == 0
    # The first token is in slot 6, the second in slot 4; both groups of heads see the same.
    assert sees.tolist() == [[False, False, True], [True, False, True], [True, True, True]] * 2


@pytest.mark.parametrize("pads_rows", [False, True])
def test_outputs_come_back_in_the_order_of_the_pass(pads_rows: bool) -> None:
    long = list(range(20, 20 + MAX_PADDED_QUERIES + 1))
    plan = plan_of([1, 2], long, [5], [7, 8, 9], pads_rows=pads_rows)
    calls = plan.calls(None)
    assert len(calls) == (2 if pads_rows else 4)
    outputs = torch.tensor([token for call in calls for token in numbers(call.queries)])
    in_order = outputs if plan.order is None else outputs[plan.order]
    assert in_order.tolist() == list(range(len(plan.tokens)))
    assert plan.order is None or pads_rows


def test_one_short_row_is_not_padded() -> None:
    plan = plan_of([3, 4], list(range(20, 40)), pads_rows=True)
    assert plan.order is None
    assert [call.sequences for call in plan.calls(None)] == [1, 1]


def test_calls_are_made_once_for_all_layers_of_a_window() -> None:
    plan = plan_of([1, 2, 3])
    assert plan.calls(None) is plan.calls(None)
    assert plan.calls(2) is not plan.calls(None)


def test_an_abandoned_pass_raises() -> None:
    plan_of([1]).check()
    with pytest.raises(PassAbandoned):
        plan_of([1], is_abandoned=True).check()
