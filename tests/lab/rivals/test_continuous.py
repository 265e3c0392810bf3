"""Continuous drafting: one drafter that is never waited for, whole lookaheads, micro-batches."""

import random
from typing import Any

import pytest

from cosine_lab.rivals.continuous import Continuous
from cosine_lab.rivals.dsi import Dsi, DsiOptions
from cosine_lab.rivals.lone_drafter import LoneDrafter
from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_p2p.strategy.base import (
    SendAdvance,
    SendAssign,
    SendTree,
    VerifierOpened,
)
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.nodes import BASE, Node
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started, tokens_of_trees


def made(name: str) -> Continuous:
    return Dsi(ROOT) if name == "dsi" else PipeInfer(ROOT, options=PipeInferOptions(n_parallel=1))


def opened(name: str) -> Continuous:
    strategy = made(name)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    strategy.on(started(1), 0.0)
    return strategy


@pytest.fixture(params=["dsi", "pipeinfer"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_drafter_runs_ahead_of_every_commit(name: str) -> None:
    [assign] = made(name).on(started(1), 0.0)
    assert isinstance(assign, SendAssign)
    assert (assign.depth, assign.width, assign.base) == (64, 1, ROOT)
    strategy = opened(name)
    assert SendAdvance(1, 0, (7, 8)) in strategy.on(committed([7, 8]), 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_verifier_can_attach_all_that_is_sent(name: str, seed: int) -> None:
    rng = random.Random(seed)
    strategy, there = opened(name), LiveTree(ROOT)
    output: list[int] = []
    for _ in range(60):
        if rng.random() < 0.3:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 3))]
            there.advance(tokens)
            feed(there, strategy.on(committed(tokens, after=output), 0.0))
            output += tokens
            continue
        after = output + [rng.randrange(2) for _ in range(rng.randrange(4))]
        for action in strategy.on(drafted([rng.randrange(2)], after=after, confidence=rng.random()), 0.0):
            assert isinstance(action, SendTree)
            assert action.block.base in there
            before = len(there)
            feed(there, [action])
            assert len(there) == before + len(action.block.nodes)


def dsi(**options: Any) -> Dsi:
    strategy = Dsi(ROOT, options=DsiOptions(**options))
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    strategy.on(started(1), 0.0)
    return strategy


def test_a_lookahead_is_sent_whole() -> None:
    strategy = dsi(lookahead_tokens=2)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([2, 3], after=[1]), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([4, 5, 6, 7], after=[1, 2, 3]), 0.0)) == [[3, 4, 5, 6]]


def pipeinfer(**options: Any) -> PipeInfer:
    strategy = PipeInfer(ROOT, options=PipeInferOptions(**options))
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    strategy.on(started(1), 0.0)
    return strategy


def test_drafts_go_in_micro_batches_each_from_the_tail_of_the_last() -> None:
    strategy = pipeinfer(draft_tokens=2)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    [first] = strategy.on(drafted([2], after=[1]), 0.0)
    assert isinstance(first, SendTree)
    assert (first.block.base, [node.token for node in first.block.nodes]) == (ROOT, [1, 2])
    second, third = strategy.on(drafted([3, 4, 5, 6, 7], after=[1, 2]), 0.0)
    assert isinstance(second, SendTree) and isinstance(third, SendTree)
    assert (second.block.base, second.block.position) == (roll_digest(ROOT, [1, 2]), 2)
    assert tokens_of_trees([second, third]) == [[3, 4], [5, 6]]


def test_a_draft_below_the_threshold_ends_its_micro_batch_and_what_follows_waits() -> None:
    strategy = pipeinfer(draft_tokens=4, p_accept=0.5)
    assert tokens_of_trees(strategy.on(drafted([1, 2], confidence=0.6), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([3, 4], after=[1, 2], confidence=0.4), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([5], after=[1, 2, 3, 4], confidence=0.9), 0.0)) == []
    assert tokens_of_trees(strategy.on(committed([1, 2, 3]), 0.0)) == []


def alone(author: int | None = None) -> tuple[LoneDrafter, LiveTree]:
    tree = LiveTree(ROOT)
    return LoneDrafter(tree, author=author, depth_tokens=8, width_nodes=1), tree


def test_one_that_is_often_wrong_makes_way() -> None:
    drafter, tree = alone()
    drafter.join(started(1, prompt_nll=1.0))
    drafter.join(started(2, prompt_nll=2.0))
    output: list[int] = []
    for _ in range(40):
        tree.attach(tree.root.digest, tree.position, [Node(BASE, 7, 0.9)], [1])
        drafter.learn((3,))
        tree.advance([3])
        actions = drafter.advance(committed([3], after=output))
        output.append(3)
        if drafter.drafting == 2:
            break
        assert actions == [SendAdvance(1, len(output) - 1, (3,)), SendAdvance(2, len(output) - 1, (3,))]
    assert drafter.drafting == 2
    assert 5 <= len(output) < 20
