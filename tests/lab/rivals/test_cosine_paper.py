"""Fusion in lockstep: every position is asked of all drafters, the surest token becomes everyone's prefix."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals.cosine_paper import (
    BatchDirector,
    CosinePaper,
    CosinePaperOptions,
    CosineScoreRouter,
    draft_sizes,
)
from cosine_lab.rivals.fused_prefix import TOLD
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    SendAssign,
    SendTree,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.tree import Block, LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.messages import PassStats
from tests.cosine_p2p.strategy.rounds import joined, round_of
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started


def draft_s(requests: int, longest: int) -> float:
    return 0.005 * longest


def verify_s(requests: int, total: int) -> float:
    return 0.06 + 0.003 * max(0, requests + total - 4)


def cost(acceptances: list[float], sizes: tuple[int, ...]) -> float:
    committed = sum(1 + sum(a**i for i in range(1, g + 1)) for a, g in zip(acceptances, sizes, strict=True))
    spent_s = draft_s(len(sizes), max(sizes)) + verify_s(len(sizes), sum(sizes))
    return spent_s / committed


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(0, 16),
)
def test_no_other_sizes_cost_less(requests: list[tuple[float, int]], most: int) -> None:
    acceptances, wanted = [a for a, _ in requests], [g for _, g in requests]
    sizes = draft_sizes(acceptances, wanted, draft_s=draft_s, verify_s=verify_s, most=most)
    others = [s for s in product(*(range(g + 1) for g in wanted)) if sum(s) <= most]
    assert sizes in others
    best = min(cost(acceptances, other) for other in others)
    assert cost(acceptances, sizes) <= best * (1 + 1e-9)


def test_a_director_shares_out_what_fits_and_forgets_requests_that_are_over() -> None:
    director = BatchDirector(draft_s=draft_s, verify_s=lambda requests, total: 0.06, most=8)
    alone = director.size(b"a", wanted=8, acceptance=0.95, now_s=0.0)
    director.size(b"b", wanted=8, acceptance=0.95, now_s=0.1)
    shared = director.size(b"a", wanted=8, acceptance=0.95, now_s=0.2)
    assert shared < alone
    assert shared + director.size(b"b", wanted=8, acceptance=0.95, now_s=0.3) <= 8
    assert director.size(b"a", wanted=8, acceptance=0.95, now_s=5.0) == alone


def calm(*, smoothing: float = 0.3) -> CosineScoreRouter:
    return joined(
        CosineScoreRouter(random.Random(1), explore_share=0.0, exploit_share=0.0, smoothing=smoothing), 1, 2
    )


def test_the_score_is_the_smoothed_harmonic_mean() -> None:
    router = calm(smoothing=0.25)
    router.learn(replace(round_of((1,), {1: 4}), confidence={1: 0.5}, agreement={1: 1.0}))
    assert router.why(1).startswith("score 0.67")
    router.learn(replace(round_of((1,), {1: 0}), confidence={1: 0.5}, agreement={1: 0.0}))
    assert router.why(1).startswith("score 0.50")


@pytest.mark.parametrize(("accepted", "expected"), [(1, 2), (3, 1)])
def test_a_short_acceptance_sends_the_least_tried(accepted: int, expected: int) -> None:
    router = CosineScoreRouter(
        random.Random(1), explore_share=1.0, exploit_share=0.0, short_tokens=2.0, untried_score=0.0
    )
    joined(router, 1, 2)
    router.learn(round_of((1,), {1: accepted}))
    assert router.pick(1) == (expected,)


TWO = CosinePaperOptions(drafters=2, draft_tokens=2, explore_share=0.0, exploit_share=0.0)


def begun(options: CosinePaperOptions, *authors: int, director: BatchDirector | None = None) -> CosinePaper:
    """Before the prefill commits its token."""
    strategy = CosinePaper(ROOT, options=options, director=director)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in authors:
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    return strategy


def guesses(actions: list[Action]) -> dict[int, tuple[int, ...]]:
    return {action.author: TOLD.find(action.base)[1] for action in actions if isinstance(action, SendAssign)}


def asked(actions: list[Action]) -> set[int]:
    return {a.author for a in actions if isinstance(a, SendAssign) and a.why != "not asked now"}


def verified(actions: list[Action]) -> Block:
    [verify] = actions
    assert isinstance(verify, SendTree)
    return verify.block


def timed(event: Committed, *, took_s: float) -> Committed:
    return replace(event, stats=PassStats(0, 0, round(1e6 * took_s)))


def test_all_drafters_extend_the_fused_prefix_token_by_token() -> None:
    strategy = begun(TWO, 1, 2)
    assert guesses(strategy.on(committed([5]), 1.0)) == {1: (), 2: ()}
    assert strategy.on(drafted([7], after=[5], author=1, confidence=0.6), 1.01) == []
    actions = strategy.on(drafted([8], after=[5], author=2, confidence=0.9), 1.02)
    assert guesses(actions) == {1: (8,), 2: (8,)}
    assert strategy.on(drafted([3], after=[5, 8], author=2, confidence=0.4), 1.03) == []
    verify = verified(strategy.on(drafted([4], after=[5, 8], author=1, confidence=0.5), 1.04))
    assert [node.token for node in verify.nodes] == [8, 4, 7, 3]
    assert verify.authors == (2, 1, 1, 2)
    tree = LiveTree(roll_digest(ROOT, [5]), 1)
    tree.attach(verify.base, verify.position, verify.nodes, verify.authors)
    for path in ([8, 4], [8, 3], [7]):
        assert roll_digest(ROOT, [5, *path]) in tree


def test_a_drafter_asked_for_one_token_may_go_no_further() -> None:
    """A drafter expands nodes up to `depth` while less than `window` of its nodes are undecided."""
    strategy = begun(TWO, 1, 2)
    first = [a for a in strategy.on(committed([5]), 1.0) if isinstance(a, SendAssign)]
    assert {(a.depth, a.window) for a in first} == {(1, 1)}
    strategy.on(drafted([7], after=[5], author=1), 1.01)
    second = [a for a in strategy.on(drafted([8], after=[5], author=2), 1.02) if isinstance(a, SendAssign)]
    assert {(a.depth, a.window) for a in second} == {(1, 2)}


def test_a_draft_that_repeats_the_fused_prefix_does_not_claim_it() -> None:
    strategy = begun(TWO, 1, 2)
    strategy.on(committed([5]), 1.0)
    strategy.on(drafted([8], after=[5], author=1, confidence=0.6), 1.01)
    strategy.on(drafted([9], after=[5], author=2, confidence=0.2), 1.01)
    strategy.on(drafted([8, 3], after=[5], author=2, confidence=1.0), 1.02)
    verify = verified(strategy.on(drafted([4], after=[5, 8], author=1, confidence=0.3), 1.03))
    assert [(node.token, author) for node, author in zip(verify.nodes, verify.authors, strict=True)][:2] == [
        (8, 1),
        (3, 2),
    ]


def test_a_drafter_that_vanishes_is_not_waited_for() -> None:
    strategy = begun(TWO, 1, 2)
    strategy.on(committed([5]), 1.0)
    strategy.on(drafted([7], after=[5], author=1), 1.01)
    assert guesses(strategy.on(DrafterLost(2), 1.02)) == {1: (7,)}
    assert verified(strategy.on(DrafterLost(1), 1.03)).nodes[0].token == 7
    assert verified(strategy.on(committed([7], after=[5]), 1.1)).nodes == ()


def test_patience_ends_with_what_is_fused_and_without_the_silent() -> None:
    strategy = begun(TWO, 1, 2)
    actions = strategy.on(committed([5]), 1.0)
    strategy.on(drafted([7], after=[5], author=1), 1.01)
    [wake] = [action for action in actions if isinstance(action, WakeAt)]
    assert [node.token for node in verified(strategy.on(Tick(), wake.at_s)).nodes] == [7]
    actions = strategy.on(committed([7], after=[5]), 3.0)
    assert asked(actions) == {1}


def test_drafts_get_shorter_while_passes_queue_and_longer_when_they_do_not() -> None:
    strategy = begun(replace(TWO, draft_tokens=4), 1)
    now_s, output = 1.0, [5]
    strategy.on(committed([5]), now_s)

    def round_of(latency_s: float) -> int:
        """How many tokens the round fuses; its pass alone takes 60 ms."""
        nonlocal now_s
        tokens: list[int] = []
        actions: list[Action] = []
        while not any(isinstance(action, SendTree) for action in actions):
            actions = strategy.on(drafted([7], after=[*output, *tokens]), now_s)
            tokens.append(7)
        now_s += latency_s
        strategy.on(timed(committed([9], after=output), took_s=0.06), now_s)
        output.append(9)
        return len(tokens)

    assert [round_of(0.3) for _ in range(4)] == [4, 3, 2, 1]
    assert [round_of(0.07) for _ in range(5)] == [1, 2, 3, 4, 4]


def test_a_director_decides_how_long_drafts_are() -> None:
    director = BatchDirector(draft_s=lambda b, g: 0.006 * g, verify_s=lambda b, total: 0.06, most=1)
    strategy = begun(replace(TWO, drafters=1, draft_tokens=6), 1, director=director)
    strategy.on(committed([5]), 1.0)
    assert verified(strategy.on(drafted([7], after=[5]), 1.01)).nodes[0].token == 7
