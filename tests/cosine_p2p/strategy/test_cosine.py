"""Tests of the strategy `cosine`."""

import random
from collections.abc import Sequence

import pytest

from cosine_p2p.strategy.base import (
    Action,
    DrafterLost,
    DraftersAllowed,
    DrafterStarted,
    RecallDrafter,
    ReleaseDrafter,
    SendAssign,
    SendTree,
    VerifierOpened,
)
from cosine_p2p.strategy.cosine import SILENT_TOKENS, Cosine, CosineOptions
from cosine_p2p.strategy.tree import MAX_LIVE_NODES, LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import MAX_TREE_DEPTH
from cosine_protocol.verify import HOME_AUTHOR
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started


def opened(*authors: int) -> Cosine:
    strategy = Cosine(ROOT)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author), 0.0)
    return strategy


def sent_tokens(actions: list[Action]) -> list[int]:
    return [node.token for action in actions if isinstance(action, SendTree) for node in action.block.nodes]


def assigned(verifier: VerifierOpened, drafter: DrafterStarted) -> SendAssign:
    strategy = Cosine(ROOT)
    strategy.on(verifier, 0.0)
    [assign] = strategy.on(drafter, 0.0)
    assert isinstance(assign, SendAssign)
    return assign


def test_a_drafter_drafts_as_deep_as_it_gets_until_the_news_of_its_drafts_is_back() -> None:
    near = assigned(VerifierOpened(0.06, 0.01), started(rtt_s=0.01))
    options = CosineOptions()
    assert (near.depth, near.window) == (options.depth_tokens, options.window_nodes)
    # 6 ms a token: two passes and both ways are 240 ms.
    far = assigned(VerifierOpened(0.06, 0.02), started(rtt_s=0.1))
    assert (far.depth, far.window) == (40, MAX_LIVE_NODES // options.drafters)
    # Its deepest nodes, one below what it expands, still fit into a tree.
    for token_s in (0.0, 1e-6, 0.001):
        assert assigned(VerifierOpened(60.0, 0.0), DrafterStarted(1, 1.0, token_s, 0.1)).depth == MAX_TREE_DEPTH - 1


def test_drafts_wait_for_a_verifier_and_go_again_to_the_next() -> None:
    strategy = Cosine(ROOT)
    strategy.on(started(1), 0.0)
    assert strategy.on(drafted([1, 2]), 0.0) == []
    for _ in range(2):
        assert sent_tokens(strategy.on(VerifierOpened(0.06, 0.01), 0.0)) == [1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_a_verifier_can_attach_all_that_is_sent(seed: int) -> None:
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
            assert action.block.base in there, f"seed {seed}"
            feed(there, [action])
    assert there.root.digest == roll_digest(ROOT, output), f"seed {seed}"
    assert {node.digest for node in there.walk()} <= known, f"seed {seed}"


def drive(
    strategy: Cosine, *, tokens: int, output: list[int], drafts: dict[int, int], authors: Sequence[int] = ()
) -> list[Action]:
    """Commit `tokens` times token 5 by `authors`; before each, author a has drafted token `drafts[a]`."""
    actions: list[Action] = []
    for _ in range(tokens):
        for author, token in drafts.items():
            actions += strategy.on(drafted([token], after=output, author=author), 0.0)
        actions += strategy.on(committed([5], after=output, authors=authors), 0.0)
        output.append(5)
    return actions


def recalled(actions: list[Action]) -> list[int]:
    return [action.author for action in actions if isinstance(action, RecallDrafter)]


def test_released_drafters_come_back_when_the_text_changes_its_subject() -> None:
    strategy, output = opened(1, 2, 3), [0]
    strategy.on(committed(output), 0.0)
    actions = drive(strategy, tokens=40, output=output, drafts={1: 5, 2: 6, 3: 7})
    assert {action.author for action in actions if isinstance(action, ReleaseDrafter)} == {2, 3}
    assert set(recalled(drive(strategy, tokens=30, output=output, drafts={1: 6}))) == {2, 3}


def test_a_proven_leader_is_not_released_for_words_after_a_collapse() -> None:
    strategy, output = Cosine(ROOT), [0]
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author, prompt_nll in ((1, 3.0), (2, 3.2), (3, 0.0)):
        strategy.on(started(author, prompt_nll=prompt_nll), 0.0)
    strategy.on(committed(output), 0.0)
    drive(strategy, tokens=40, output=output, drafts={1: 5, 3: 9})
    actions = drive(strategy, tokens=12, output=output, drafts={1: 6})
    actions += drive(strategy, tokens=12, output=output, drafts={1: 5})
    assert not [action for action in actions if isinstance(action, ReleaseDrafter) and action.author == 1]


def test_who_only_repeats_others_goes_and_comes_back_when_nobody_else_is_left() -> None:
    strategy, output = opened(1, 2), [0]
    strategy.on(committed(output), 0.0)
    actions = drive(strategy, tokens=12, output=output, drafts={1: 5, 2: 5})
    assert [action.author for action in actions if isinstance(action, ReleaseDrafter)] == [2]
    assert recalled(strategy.on(DrafterLost(1), 0.0)) == [2]


def test_over_stages_who_only_repeats_the_heads_own_drafter_goes_and_who_adds_to_it_stays() -> None:
    strategy, output = opened(1, 2), [0]
    strategy.on(VerifierOpened(0.06, 0.01, has_stages=True), 0.0)
    strategy.on(committed(output, authors=[HOME_AUTHOR]), 0.0)
    drive(strategy, tokens=SILENT_TOKENS // 2, output=output, drafts={1: 5, 2: 5}, authors=[HOME_AUTHOR])
    drive(strategy, tokens=1, output=output, drafts={1: 5, 2: 5}, authors=[2])
    actions = drive(strategy, tokens=SILENT_TOKENS - 1, output=output, drafts={1: 5, 2: 5}, authors=[HOME_AUTHOR])
    assert [action.author for action in actions if isinstance(action, ReleaseDrafter)] == [1]
    # The only one goes as well.
    actions = drive(strategy, tokens=1, output=output, drafts={2: 5}, authors=[HOME_AUTHOR])
    assert [action.author for action in actions if isinstance(action, ReleaseDrafter)] == [2]
    assert recalled(actions) == []


def test_when_no_drafter_is_allowed_all_go_and_nothing_of_theirs_is_sent() -> None:
    strategy = opened(1, 2)
    released = strategy.on(DraftersAllowed(0), 0.0)
    assert {action.author for action in released if isinstance(action, ReleaseDrafter)} == {1, 2}
    assert all("no drafters are wanted now" in str(action) for action in released)
    assert strategy.on(drafted([1, 2]), 0.0) == []
    assert not sent_tokens(strategy.on(committed([1]), 0.0))
    # One that was asked before the decision starts in vain.
    assert [type(action) for action in strategy.on(started(3), 0.0)] == [ReleaseDrafter]
