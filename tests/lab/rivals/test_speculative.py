"""Synchronous rounds: ask one drafter, verify its chain, repeat."""

from cosine_lab.rivals.speculative import Speculative
from cosine_p2p.strategy.base import (
    Action,
    DrafterLost,
    SendAdvance,
    SendAssign,
    SendTree,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.tree import Block
from cosine_protocol.digests import roll_digest
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started


def begun(*authors: int) -> tuple[Speculative, list[Action]]:
    """After the prefill committed token 5, with drafters of falling knowledge of the prompt."""
    strategy = Speculative(ROOT)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    return strategy, strategy.on(committed([5]), 1.0)


def assigned(actions: list[Action]) -> SendAssign:
    [assign] = [action for action in actions if isinstance(action, SendAssign)]
    return assign


def verified(actions: list[Action]) -> Block:
    [verify] = actions
    assert isinstance(verify, SendTree)
    return verify.block


def test_without_drafters_every_pass_is_plain() -> None:
    _, actions = begun()
    assert verified(actions).nodes == ()
    assert verified(actions).base == roll_digest(ROOT, [5])


def test_a_round_asks_the_drafter_that_knows_the_prompt_best() -> None:
    _, actions = begun(2, 1)
    assert {action.author for action in actions if isinstance(action, SendAdvance)} == {1, 2}
    assign = assigned(actions)
    assert (assign.author, assign.base, assign.position, assign.width) == (1, roll_digest(ROOT, [5]), 1, 1)
    [wake] = [action for action in actions if isinstance(action, WakeAt)]
    assert wake.at_s > 1.0


def test_a_complete_chain_is_verified_and_nothing_before() -> None:
    strategy, actions = begun(1)
    wanted = assigned(actions).depth
    tokens = list(range(wanted))
    assert strategy.on(drafted(tokens[:-1], after=[5]), 1.1) == []
    verify = verified(strategy.on(drafted(tokens[-1:], after=[5, *tokens[:-1]]), 1.2))
    assert [node.token for node in verify.nodes] == tokens
    assert verify.authors == (1,) * wanted
    assert strategy.on(drafted(tokens, after=[5]), 1.3) == []


def test_patience_ends_with_what_is_there() -> None:
    strategy, _ = begun(1)
    strategy.on(drafted([7], after=[5]), 1.1)
    assert [node.token for node in verified(strategy.on(Tick(), 2.0)).nodes] == [7]
    assert strategy.on(Tick(), 2.1) == []


def test_a_drafter_that_vanishes_ends_its_round() -> None:
    strategy, _ = begun(1, 2)
    assert strategy.on(DrafterLost(2), 1.1) == []
    assert verified(strategy.on(DrafterLost(1), 1.2)).nodes == ()
    assert verified(strategy.on(committed([6], after=[5]), 1.3)[-1:]).nodes == ()
