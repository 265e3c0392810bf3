"""Ours: everything that arrives is fused into one tree, of which the verifier gets the best."""

import random

import pytest

from cosine_p2p.strategies.base import (
    Action,
    DrafterLost,
    Opened,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
)
from cosine_p2p.strategies.cosine import Cosine
from cosine_p2p.tree import LiveTree
from cosine_protocol.digests import roll_digest
from tests.cosine_p2p.strategies.script import ROOT, committed, drafted, feed, started


def opened(*authors: int) -> Cosine:
    strategy = Cosine(ROOT)
    strategy.on(Opened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author), 0.0)
    return strategy


def sent_tokens(actions: list[Action]) -> list[int]:
    return [node.token for action in actions if isinstance(action, SendTree) for node in action.nodes]


def test_a_drafter_that_starts_is_assigned_the_main_line() -> None:
    strategy = Cosine(ROOT)
    strategy.on(Opened(0.06, 0.01), 0.0)
    [assign] = strategy.on(started(1), 0.0)
    assert isinstance(assign, SendAssign)
    assert (assign.author, assign.base, assign.position) == (1, ROOT, 0)
    assert "RTT 10 ms" in assign.why


def test_drafts_go_to_the_verifier_at_once_and_once() -> None:
    strategy = opened(1)
    [send] = strategy.on(drafted([1, 2]), 0.0)
    assert isinstance(send, SendTree)
    assert (send.base, send.position, send.authors) == (ROOT, 0, (1, 1))
    assert strategy.on(drafted([1, 2]), 0.0) == []


def test_drafts_wait_for_a_verifier_and_go_again_to_the_next() -> None:
    strategy = Cosine(ROOT)
    strategy.on(started(1), 0.0)
    assert strategy.on(drafted([1, 2]), 0.0) == []
    for _ in range(2):
        assert sent_tokens(strategy.on(Opened(0.06, 0.01), 0.0)) == [1, 2]


def test_a_draft_whose_base_comes_late_goes_with_it() -> None:
    strategy = opened(1)
    assert strategy.on(drafted([3], after=[1, 2]), 0.0) == []
    assert sorted(sent_tokens(strategy.on(drafted([1, 2]), 0.0))) == [1, 2, 3]


def test_commits_reach_every_drafter() -> None:
    strategy = opened(1, 2)
    actions = strategy.on(committed([1]), 0.0)
    assert {action.author for action in actions if isinstance(action, SendAdvance)} == {1, 2}
    strategy.on(DrafterLost(2), 0.0)
    actions = strategy.on(committed([1], after=[1]), 0.0)
    assert {action.author for action in actions if isinstance(action, SendAdvance)} == {1}


def test_what_was_committed_past_is_not_sent() -> None:
    strategy = opened(1)
    strategy.on(committed([9, 9]), 0.0)
    assert strategy.on(drafted([1, 2]), 0.0) == []


def test_contradicting_drafts_stand_side_by_side() -> None:
    strategy = opened(1, 2)
    first = sent_tokens(strategy.on(drafted([1], author=1), 0.0))
    second = sent_tokens(strategy.on(drafted([2], author=2), 0.0))
    assert (first, 2 in second) == ([1], True)


def test_hopeless_nodes_stay_here() -> None:
    strategy = opened(1)
    assert strategy.on(drafted([1], confidence=0.0), 0.0) == []


def test_a_drafter_that_is_always_wrong_is_released() -> None:
    strategy, output = opened(1, 2), [0]
    strategy.on(committed(output), 0.0)
    released: list[int] = []
    for _ in range(30):
        strategy.on(drafted([5], after=output, author=1), 0.0)
        strategy.on(drafted([6], after=output, author=2), 0.0)
        actions = strategy.on(committed([5], after=output), 0.0)
        released += [action.author for action in actions if isinstance(action, ReleaseDrafter)]
        output.append(5)
    assert released == [2]
    assert strategy.weights() == {1: 1.0}


@pytest.mark.parametrize("seed", range(60))
def test_a_verifier_can_attach_all_that_is_sent(seed: int) -> None:
    """Drafts in any order, commits in between: each block connects, and only what was drafted is there."""
    rng = random.Random(seed)
    strategy, there = opened(1, 2, 3), LiveTree(ROOT)
    known: set[bytes] = set()
    output: list[int] = []
    for _ in range(40):
        if rng.random() < 0.2:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 3))]
            there.advance(tokens)
            feed(there, strategy.on(committed(tokens, after=output), 0.0))
            output += tokens
            continue
        after = output + [rng.randrange(2) for _ in range(rng.randrange(3))]
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 5))]
        known |= {roll_digest(ROOT, [*after, *tokens[: n + 1]]) for n in range(len(tokens))}
        event = drafted(tokens, after=after, author=rng.randrange(1, 4), confidence=rng.random())
        for action in strategy.on(event, 0.0):
            assert isinstance(action, SendTree), f"seed {seed}"
            assert action.base in there, f"seed {seed}"
            feed(there, [action])
    assert there.root == roll_digest(ROOT, output), f"seed {seed}"
    assert {node.digest for node in there.walk()} <= known, f"seed {seed}"
