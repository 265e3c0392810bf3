"""Distributed speculative inference with one verifier: whole lookaheads of a chain, none twice, none void."""

from typing import Any

from cosine_lab.rivals.dsi import Dsi, DsiOptions
from cosine_p2p.strategy.base import SendTree, VerifierOpened
from cosine_protocol.digests import roll_digest
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started, tokens_of_trees


def opened(**options: Any) -> Dsi:
    strategy = Dsi(ROOT, options=DsiOptions(**options))
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    strategy.on(started(1), 0.0)
    return strategy


def test_drafts_go_to_the_verifier_as_they_come() -> None:
    strategy = opened()
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == [[1]]
    [more] = strategy.on(drafted([2, 3], after=[1]), 0.0)
    assert isinstance(more, SendTree)
    assert (more.block.base, more.block.position, more.block.authors) == (roll_digest(ROOT, [1]), 1, (1, 1))


def test_a_lookahead_is_sent_whole() -> None:
    strategy = opened(lookahead_tokens=2)
    assert tokens_of_trees(strategy.on(drafted([1]), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([2, 3], after=[1]), 0.0)) == [[1, 2]]
    assert tokens_of_trees(strategy.on(drafted([4, 5, 6, 7], after=[1, 2, 3]), 0.0)) == [[3, 4, 5, 6]]


def test_after_a_rejection_the_chain_goes_on_below_the_corrected_prefix() -> None:
    strategy = opened(lookahead_tokens=2)
    strategy.on(drafted([1, 2, 3, 4]), 0.0)
    assert tokens_of_trees(strategy.on(committed([1, 9]), 0.0)) == []
    assert tokens_of_trees(strategy.on(drafted([5], after=[1, 2, 3, 4]), 0.0)) == []
    [again] = strategy.on(drafted([7, 8], after=[1, 9]), 0.0)
    assert isinstance(again, SendTree)
    assert (again.block.base, tokens_of_trees([again])) == (roll_digest(ROOT, [1, 9]), [[7, 8]])
