"""Rounds of trees: ask several drafters, merge what they drafted, verify it in one pass."""

from collections.abc import Mapping

from cosine_lab.rivals.specinfer import SpecInfer, SpecInferOptions
from cosine_p2p.strategy.base import (
    Action,
    DrafterLost,
    FragmentReceived,
    SendAssign,
    SendTree,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, Node, NodeBlock
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started

THREE = SpecInferOptions(drafters=2, depth_tokens=3, width_nodes=2, tree_nodes=8, max_nodes=6)


def begun(options: SpecInferOptions, *authors: int) -> tuple[SpecInfer, list[Action]]:
    """After the prefill committed token 5, with drafters of falling knowledge of the prompt."""
    strategy = SpecInfer(ROOT, options=options)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    return strategy, strategy.on(committed([5]), 1.0)


def branched(branches: Mapping[int, float], *, after: list[int], author: int) -> FragmentReceived:
    """Siblings below the output tokens `after`, with confidences."""
    nodes = tuple(Node(BASE, token, confidence) for token, confidence in branches.items())
    return FragmentReceived(author, Draft(1, 1, roll_digest(ROOT, after), len(after), NodeBlock.of(nodes)))


def assigned(actions: list[Action]) -> dict[int, SendAssign]:
    """Who is to draft more than a first token."""
    return {a.author: a for a in actions if isinstance(a, SendAssign) and a.window > 1}


def test_the_drafters_that_know_the_prompt_best_draft_a_tree_each() -> None:
    _, actions = begun(THREE, 3, 1, 2)
    assigns = assigned(actions)
    assert set(assigns) == {1, 2}
    assert {(a.depth, a.width, a.window) for a in assigns.values()} == {(2, 2, 8)}


def test_trees_are_merged_by_prefix_once_all_are_deep_enough() -> None:
    strategy, _ = begun(THREE, 1, 2)
    assert strategy.on(branched({7: 0.6, 8: 0.3}, after=[5], author=1), 1.01) == []
    assert strategy.on(drafted([7, 9, 4], after=[5], author=1), 1.02) == []
    actions = strategy.on(drafted([8, 9, 4], after=[5], author=2), 1.03)
    [verify] = actions
    assert isinstance(verify, SendTree)
    assert len(verify.block.nodes) == 6
    tree = LiveTree(roll_digest(ROOT, [5]), 1)
    feed(tree, actions)
    for path in ([7, 9, 4], [8, 9, 4]):
        assert roll_digest(ROOT, [5, *path]) in tree
    assert set(verify.block.authors) == {1, 2}


def test_a_tree_that_stays_shallow_is_waited_for_until_its_time_is_up() -> None:
    strategy, actions = begun(THREE, 1)
    [wake] = [action for action in actions if isinstance(action, WakeAt)]
    assert 1.0 + 0.01 + 3 * 0.006 < wake.at_s < 1.1
    strategy.on(drafted([7], after=[5]), 1.01)
    [verify] = strategy.on(Tick(), wake.at_s)
    assert isinstance(verify, SendTree)
    assert [node.token for node in verify.block.nodes] == [7]


def test_the_last_awaited_drafter_vanishes() -> None:
    strategy, _ = begun(THREE, 1, 2)
    strategy.on(drafted([7, 8, 9], after=[5]), 1.01)
    [verify] = strategy.on(DrafterLost(2), 1.02)
    assert isinstance(verify, SendTree)
    assert len(verify.block.nodes) == 3
