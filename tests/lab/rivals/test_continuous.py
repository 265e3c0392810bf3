"""Continuous drafting, as all strategies have it that are built on it."""

import pytest

from cosine_lab.rivals.continuous import Continuous
from cosine_lab.rivals.dsi import Dsi
from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_p2p.strategy.base import DrafterLost, SendAdvance, SendAssign, SendTree, VerifierOpened
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started


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
