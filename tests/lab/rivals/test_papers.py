"""The core of each paper's design, by events alone."""

from collections.abc import Mapping

from cosine_lab.rivals.dsi import Dsi, DsiOptions
from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_lab.rivals.specinfer import SpecInfer, SpecInferOptions
from cosine_lab.rivals.speculative import Speculative
from cosine_p2p.strategy.base import FragmentReceived, SendAdvance, SendAssign, SendTree, Strategy, VerifierOpened
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import BASE, Draft, Node, NodeBlock
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started, tokens_of_trees


def begun(strategy: Strategy, *authors: int) -> Strategy:
    """Return the strategy with an open verifier and drafters, the first of which knows the prompt best."""
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    return strategy


def test_speculative_decoding_verifies_one_complete_chain_of_the_best_drafter() -> None:
    strategy = begun(Speculative(ROOT), 1, 2)
    actions = strategy.on(committed([5]), 1.0)
    assert {action.author for action in actions if isinstance(action, SendAdvance)} == {1, 2}
    [assign] = [action for action in actions if isinstance(action, SendAssign) and action.why != "not asked now"]
    assert (assign.author, assign.base, assign.position, assign.width) == (1, roll_digest(ROOT, [5]), 1, 1)
    tokens = list(range(assign.depth))
    assert strategy.on(drafted(tokens[:-1], after=[5]), 1.1) == []
    assert tokens_of_trees(strategy.on(drafted(tokens[-1:], after=[5, *tokens[:-1]]), 1.2)) == [tokens]
    assert strategy.on(drafted(tokens, after=[5]), 1.3) == []


def branched(branches: Mapping[int, float], *, after: list[int], author: int) -> FragmentReceived:
    """Return siblings below the output tokens `after`, with confidences."""
    nodes = tuple(Node(BASE, token, confidence) for token, confidence in branches.items())
    return FragmentReceived(author, Draft(1, 1, roll_digest(ROOT, after), len(after), NodeBlock.of(nodes)))


def test_specinfer_merges_trees_by_prefix_once_all_are_deep_enough() -> None:
    options = SpecInferOptions(drafters=2, depth_tokens=3, width_nodes=2, tree_nodes=8, max_nodes=6)
    strategy = begun(SpecInfer(ROOT, options=options), 1, 2)
    strategy.on(committed([5]), 1.0)
    assert strategy.on(branched({7: 0.6, 8: 0.3}, after=[5], author=1), 1.01) == []
    assert strategy.on(drafted([7, 9, 4], after=[5], author=1), 1.02) == []
    actions = strategy.on(drafted([8, 9, 4], after=[5], author=2), 1.03)
    [verify] = actions
    assert isinstance(verify, SendTree)
    assert (len(verify.block.nodes), set(verify.block.authors)) == (6, {1, 2})
    tree = LiveTree(roll_digest(ROOT, [5]), 1)
    feed(tree, actions)
    assert all(roll_digest(ROOT, [5, *path]) in tree for path in ([7, 9, 4], [8, 9, 4]))


def test_dsi_sends_whole_lookaheads_and_its_drafter_runs_ahead_of_every_commit() -> None:
    strategy = begun(Dsi(ROOT, options=DsiOptions(lookahead_tokens=2)), 1)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([2, 3], after=[1]), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([4, 5, 6, 7], after=[1, 2, 3]), 0.0)) == [[3, 4, 5, 6]]
    assert SendAdvance(1, 0, (7, 8)) in strategy.on(committed([7, 8]), 0.0)


def test_pipeinfer_sends_micro_batches_which_an_unlikely_draft_ends() -> None:
    strategy = begun(PipeInfer(ROOT, options=PipeInferOptions(draft_tokens=2)), 1)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([2], after=[1]), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([3, 4, 5, 6, 7], after=[1, 2]), 0.0)) == [[3, 4], [5, 6]]
    strategy = begun(PipeInfer(ROOT, options=PipeInferOptions(draft_tokens=4, p_accept=0.5)), 1)
    assert tokens_of_trees(strategy.on(drafted([1, 2], confidence=0.6), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([3, 4], after=[1, 2], confidence=0.4), 0.0)) == [[1, 2]]
