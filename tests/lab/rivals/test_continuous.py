"""Continuous drafting, as all strategies have it that are built on it."""

import random

import pytest

from cosine_lab.rivals.continuous import Continuous
from cosine_lab.rivals.dsi import Dsi
from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_p2p.strategy.base import DrafterLost, SendAdvance, SendAssign, SendTree, VerifierOpened
from cosine_p2p.strategy.tree import LiveTree
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started


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


def test_nothing_is_sent_before_the_verifier_is_open(name: str) -> None:
    strategy = made(name)
    strategy.on(started(1), 0.0)
    assert strategy.on(drafted([3]), 0.0) == []
    [tree] = strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    assert isinstance(tree, SendTree)


def test_another_verifier_gets_again_what_is_still_possible(name: str) -> None:
    strategy = opened(name)
    strategy.on(drafted([1, 2, 3]), 0.0)
    strategy.on(committed([1]), 0.0)
    trees = strategy.on(VerifierOpened(0.06, 0.01, 1), 0.0)
    assert [node.token for tree in trees if isinstance(tree, SendTree) for node in tree.block.nodes] == [2, 3]


def test_only_the_drafter_at_work_counts(name: str) -> None:
    strategy = opened(name)
    strategy.on(started(2, prompt_nll=5.0), 0.0)
    assert strategy.on(drafted([3], author=2), 0.0) == []
    [assign] = strategy.on(DrafterLost(1), 0.0)
    assert isinstance(assign, SendAssign)
    assert assign.author == 2
    assert len(strategy.on(drafted([3], author=2), 0.0)) == 1


@pytest.mark.parametrize("seed", range(12))
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
