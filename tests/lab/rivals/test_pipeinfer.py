"""Continuous speculation: micro-batches from the tail of the last, under a threshold that reacts."""

from collections.abc import Sequence
from typing import Any

from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_p2p.strategy.base import (
    FragmentReceived,
    SendAdvance,
    SendAssign,
    SendTree,
    VerifierOpened,
)
from cosine_protocol.digests import roll_digest
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, Node, NodeBlock
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started, tokens_of_trees


def opened(**options: Any) -> PipeInfer:
    strategy = PipeInfer(ROOT, options=PipeInferOptions(**options))
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    strategy.on(started(1), 0.0)
    return strategy


def siblings(*choices: tuple[int, float], after: Sequence[int] = ()) -> FragmentReceived:
    nodes = NodeBlock.of([Node(BASE, token, confidence) for token, confidence in choices])
    return FragmentReceived(1, Draft(1, 1, roll_digest(ROOT, after), len(after), nodes))


def test_the_drafter_grows_as_many_lines_as_may_be_sent() -> None:
    [assign] = PipeInfer(ROOT, options=PipeInferOptions(n_parallel=2)).on(started(1), 0.0)
    assert isinstance(assign, SendAssign)
    assert assign.width == 2


def test_drafts_go_in_micro_batches_each_from_the_tail_of_the_last() -> None:
    strategy = opened(draft_tokens=2)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    [first] = strategy.on(drafted([2], after=[1]), 0.0)
    assert isinstance(first, SendTree)
    assert (first.block.base, [node.token for node in first.block.nodes]) == (ROOT, [1, 2])
    second, third = strategy.on(drafted([3, 4, 5, 6, 7], after=[1, 2]), 0.0)
    assert isinstance(second, SendTree) and isinstance(third, SendTree)
    assert (second.block.base, second.block.position) == (roll_digest(ROOT, [1, 2]), 2)
    assert tokens_of_trees([second, third]) == [[3, 4], [5, 6]]


def test_a_draft_below_the_threshold_ends_its_micro_batch_and_what_follows_waits() -> None:
    strategy = opened(draft_tokens=4, p_accept=0.5)
    assert tokens_of_trees(strategy.on(drafted([1, 2], confidence=0.6), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([3, 4], after=[1, 2], confidence=0.4), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([5], after=[1, 2, 3, 4], confidence=0.9), 0.0)) == []
    assert tokens_of_trees(strategy.on(committed([1, 2, 3]), 0.0)) == []


def test_a_likely_second_child_is_a_branch() -> None:
    strategy = opened(draft_tokens=1, p_split=0.2, n_parallel=2)
    assert tokens_of_trees(strategy.on(siblings((1, 0.5), (2, 0.3), (3, 0.25)), 0.0)) == [[1, 2]]
    assert tokens_of_trees(opened(p_split=0.4).on(siblings((1, 0.5), (2, 0.3)), 0.0)) == [[1]]


def test_after_a_miss_drafting_starts_again_from_the_corrected_prefix() -> None:
    strategy = opened(draft_tokens=2)
    strategy.on(drafted([1, 2, 3, 4]), 0.0)
    actions = strategy.on(committed([1, 9]), 0.0)
    assert [a for a in actions if isinstance(a, SendAdvance)] == [SendAdvance(1, 0, (1, 9))]
    assert tokens_of_trees(actions) == []
    assert tokens_of_trees(strategy.on(drafted([5, 6], after=[1, 2, 3, 4]), 0.0)) == []
    [again] = strategy.on(drafted([7, 8], after=[1, 9]), 0.0)
    assert isinstance(again, SendTree)
    assert (again.block.base, tokens_of_trees([again])) == (roll_digest(ROOT, [1, 9]), [[7, 8]])
