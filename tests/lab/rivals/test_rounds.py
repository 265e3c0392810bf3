"""Synchronous rounds: whom they ask, how long they wait, what they verify, and what they learn."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from cosine_lab.rivals.rounds import (
    BACKOFF_ROUNDS,
    DRAFT_LENGTHS,
    best_draft_tokens,
)
from cosine_lab.rivals.specinfer import SpecInfer, SpecInferOptions
from cosine_lab.rivals.speculative import Speculative
from cosine_p2p.strategy.base import (
    Action,
    DrafterLost,
    Event,
    FragmentReceived,
    SendAdvance,
    SendAssign,
    SendTree,
    Strategy,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.tree import Block, LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.limits import MAX_COMMIT_TOKENS
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, Node, NodeBlock
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, feed, started


def opened() -> Speculative:
    strategy = Speculative(ROOT)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    return strategy


def asked(actions: list[Action]) -> list[int]:
    """Who is to draft more than a first token."""
    return [action.author for action in actions if isinstance(action, SendAssign) and action.why != "not asked now"]


def test_a_drafter_that_starts_late_hears_what_was_committed_meanwhile() -> None:
    strategy = opened()
    assert strategy.on(started(1), 0.1) == []
    output: list[int] = []
    for token in range(MAX_COMMIT_TOKENS + 3):
        strategy.on(committed([token], after=output), 0.2)
        output.append(token)
    assert strategy.on(started(2), 0.3) == [SendAdvance(2, 3, tuple(output[3:]))]


def test_a_silent_drafter_rests_for_some_rounds_and_is_asked_again() -> None:
    strategy = opened()
    strategy.on(started(1, prompt_nll=1.0), 0.0)
    strategy.on(started(2, prompt_nll=2.0), 0.0)
    now_s, output = 1.0, [5]
    assert asked(strategy.on(committed([5]), now_s)) == [1]
    picked = []
    for token in range(BACKOFF_ROUNDS + 1):
        strategy.on(Tick(), now_s + 10.0)
        now_s += 20.0
        strategy.on(drafted([9], after=output, author=2), now_s)
        actions = strategy.on(committed([token], after=output), now_s)
        output.append(token)
        picked += asked(actions)
        strategy.on(drafted([9] * 16, after=output, author=picked[-1]), now_s + 0.1)
    assert picked == [2] * BACKOFF_ROUNDS + [1]


@dataclass(slots=True)
class Storm:
    """A verifier and drafters that do what they like, in any order."""

    strategy: Strategy
    rng: random.Random
    now_s: float = 1.0
    output: list[int] = field(default_factory=list)
    following: set[int] = field(default_factory=set)
    is_awaited: bool = False
    """Whether a pass was asked for and is not answered yet."""

    def tell(self, event: Event) -> None:
        self.now_s += self.rng.random() * 0.05
        for action in self.strategy.on(event, self.now_s):
            if isinstance(action, SendTree):
                assert not self.is_awaited
                assert (action.block.base, action.block.position) == (
                    roll_digest(ROOT, self.output),
                    len(self.output),
                )
                tree = LiveTree(action.block.base, action.block.position)
                assert len(
                    tree.attach(action.block.base, action.block.position, action.block.nodes, action.block.authors)
                ) == len(tree)
                assert len(tree) == len(action.block.nodes)
                self.is_awaited = True
            if isinstance(action, SendAssign | SendAdvance):
                assert action.author in self.following

    def commit(self) -> None:
        tokens = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 4))]
        event = committed(tokens, after=self.output)
        self.output += tokens
        self.is_awaited = False
        self.tell(event)

    def draft(self) -> None:
        """Below what is committed, or a little before or after it."""
        start = max(0, len(self.output) - self.rng.randrange(3))
        ahead = [self.rng.randrange(3) for _ in range(self.rng.randrange(3))] if self.rng.random() < 0.4 else []
        chain = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 6))]
        event = drafted(chain, after=[*self.output[:start], *ahead], author=self.rng.randrange(1, 5))
        self.tell(event)

    def join_or_leave(self) -> None:
        author = self.rng.randrange(1, 5)
        if author in self.following:
            self.following.discard(author)
            self.tell(DrafterLost(author))
        else:
            self.following.add(author)
            self.tell(started(author, prompt_nll=self.rng.random()))

    def fail_over(self) -> None:
        self.is_awaited = False
        self.tell(VerifierOpened(0.06, 0.01, position=len(self.output)))
        self.commit()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [Speculative, SpecInfer])
def test_in_any_order_of_events_every_round_ends_in_one_pass(make: Callable[[bytes], Strategy], seed: int) -> None:
    storm = Storm(make(ROOT), random.Random(seed))
    storm.fail_over()
    for _ in range(150):
        act = storm.rng.choice([storm.draft] * 6 + [storm.join_or_leave, storm.fail_over])
        act()
        if storm.is_awaited and storm.rng.random() < 0.5:
            storm.commit()
        if storm.rng.random() < 0.1:
            storm.now_s += 60.0
            storm.tell(Tick())
            storm.tell(Tick())
            assert storm.is_awaited


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_best_of_all_lengths(seed: int) -> None:
    rng = random.Random(seed)
    acceptance, draft_s, rtt_s, pass_s = rng.random(), rng.uniform(0.001, 0.05), rng.uniform(0, 0.3), 0.06
    chosen = best_draft_tokens(acceptance=acceptance, draft_token_s=draft_s, round_trips_s=rtt_s, verify_s=pass_s)
    rates = {
        g: sum(acceptance**step for step in range(g + 1)) / (g * draft_s + rtt_s + pass_s) for g in DRAFT_LENGTHS
    }
    assert rates[chosen] == pytest.approx(max(rates.values())), f"seed {seed}"


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


THREE = SpecInferOptions(drafters=2, depth_tokens=3, width_nodes=2, tree_nodes=8, max_nodes=6)


def begun_trees(*authors: int) -> tuple[SpecInfer, list[Action]]:
    """After the prefill committed token 5, with drafters of falling knowledge of the prompt."""
    strategy = SpecInfer(ROOT, options=THREE)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    return strategy, strategy.on(committed([5]), 1.0)


def branched(branches: Mapping[int, float], *, after: list[int], author: int) -> FragmentReceived:
    """Siblings below the output tokens `after`, with confidences."""
    nodes = tuple(Node(BASE, token, confidence) for token, confidence in branches.items())
    return FragmentReceived(author, Draft(1, 1, roll_digest(ROOT, after), len(after), NodeBlock.of(nodes)))


def test_trees_are_merged_by_prefix_once_all_are_deep_enough() -> None:
    strategy, _ = begun_trees(1, 2)
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
