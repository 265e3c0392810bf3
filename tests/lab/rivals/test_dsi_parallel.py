"""Speculation parallelism: a task to a free verifier for every lookahead, and none that cannot help."""

from collections.abc import Sequence

from cosine_lab.rivals.dsi_parallel import (
    OVERDUE_PASSES,
    CommittedAt,
    DsiParallel,
    DsiParallelOptions,
    OpenedAt,
    SendTask,
)
from cosine_p2p.strategy.base import (
    Action,
    DrafterLost,
    SendAdvance,
    SendAssign,
    Tick,
    WakeAt,
)
from cosine_protocol.digests import roll_digest
from cosine_protocol.messages import PassStats
from tests.cosine_p2p.strategy.script import ROOT, drafted, started

PASS_S = 0.06
RTT_S = 0.01


def committed(
    tokens: Sequence[int], *, after: Sequence[int], verifier: int = 0, stands: Sequence[int] | None = None
) -> CommittedAt:
    """New tokens of the stream by a verifier that then stands after `stands`."""
    digest = roll_digest(ROOT, [*after, *tokens] if stands is None else stands)
    return CommittedAt(len(after), tuple(tokens), digest, PassStats(0, 0, 60_000), verifier)


def begun(verifiers: int = 2, drafters: int = 1, **options: object) -> tuple[DsiParallel, list[Action]]:
    """After every verifier's prefill committed token 5; what the last of them brought about."""
    strategy = DsiParallel(ROOT, options=DsiParallelOptions(**options))  # type: ignore[arg-type]
    for slot in range(verifiers):
        strategy.on(OpenedAt(PASS_S, RTT_S, 0, False, slot), 0.0)
    for author in range(1, drafters + 1):
        strategy.on(started(author, prompt_nll=float(author)), 0.0)
    actions = strategy.on(committed([5], after=[]), 0.1)
    for slot in range(1, verifiers):
        actions = strategy.on(committed([], after=[5], verifier=slot, stands=[5]), 0.1)
    return strategy, actions


def tasks(actions: Sequence[Action]) -> list[SendTask]:
    return [action for action in actions if isinstance(action, SendTask)]


def tokens_of(task: SendTask) -> list[int]:
    return [node.token for node in task.block.nodes]


def test_the_target_goes_on_alone_at_once_and_only_one_verifier_does() -> None:
    strategy = DsiParallel(ROOT)
    for slot in range(2):
        strategy.on(OpenedAt(PASS_S, RTT_S, 0, False, slot), 0.0)
    [plain] = tasks(strategy.on(committed([5], after=[]), 0.1))
    assert (plain.verifier, plain.block.nodes, plain.block.base) == (0, (), roll_digest(ROOT, [5]))
    assert tasks(strategy.on(committed([], after=[5], verifier=1, stands=[5]), 0.1)) == []


def test_every_lookahead_of_new_tokens_is_a_task_for_a_free_verifier() -> None:
    strategy, _ = begun(3, lookahead_tokens=2)
    assert tasks(strategy.on(drafted([1], after=[5]), 0.2)) == []
    [first] = tasks(strategy.on(drafted([2], after=[5, 1]), 0.2))
    assert (first.verifier, tokens_of(first), first.block.authors) == (1, [1, 2], (1, 1))
    assert tasks(strategy.on(drafted([3], after=[5, 1, 2]), 0.2)) == []
    [second] = tasks(strategy.on(drafted([4], after=[5, 1, 2, 3]), 0.2))
    assert (second.verifier, tokens_of(second)) == (2, [1, 2, 3, 4])
    assert tasks(strategy.on(drafted([6, 7], after=[5, 1, 2, 3, 4]), 0.2)) == []


def test_the_lookahead_is_the_least_that_the_verifiers_can_keep_up_with() -> None:
    """ceil((60 + 10) / (lookahead 6)) <= 2: 6 tokens."""
    strategy, _ = begun(2)
    assert tasks(strategy.on(drafted([1] * 5, after=[5]), 0.2)) == []
    assert len(tasks(strategy.on(drafted([1], after=[5, 1, 1, 1, 1, 1]), 0.2))) == 1


def test_a_task_starts_where_its_verifier_stands_with_what_others_committed() -> None:
    strategy, _ = begun(2, lookahead_tokens=1)
    strategy.on(drafted([1, 2, 3], after=[5]), 0.2)
    actions = strategy.on(committed([1, 2, 3, 4], after=[5], verifier=1), 0.3)
    [ahead] = tasks(actions)
    assert (ahead.verifier, ahead.block.base, ahead.block.nodes) == (1, roll_digest(ROOT, [5, 1, 2, 3, 4]), ())
    strategy.on(drafted([6], after=[5, 1, 2, 3, 4]), 0.3)
    [behind] = tasks(strategy.on(committed([], after=[5, 1, 2, 3, 4], verifier=0, stands=[5, 1]), 0.35))
    assert (behind.block.base, behind.block.position) == (roll_digest(ROOT, [5, 1]), 2)
    assert tokens_of(behind) == [2, 3, 4, 6]
    assert [node.confidence for node in behind.block.nodes] == [1.0, 1.0, 1.0, 0.8]
    assert behind.block.authors == (0, 0, 0, 1)


def test_after_a_rejection_the_pass_below_the_wrong_token_counts_for_nothing() -> None:
    strategy, _ = begun(2, lookahead_tokens=2)
    strategy.on(drafted([1, 2], after=[5]), 0.2)
    actions = strategy.on(committed([9], after=[5], verifier=0), 0.3)
    [task] = tasks(actions)
    assert (task.verifier, task.block.nodes, task.block.base) == (0, (), roll_digest(ROOT, [5, 9]))
    assert [a for a in actions if isinstance(a, SendAdvance)] == [SendAdvance(1, 1, (9,))]


def test_one_that_is_not_eager_waits_for_a_lookahead_and_not_for_ever() -> None:
    strategy, actions = begun(1, lookahead_tokens=2, is_eager=False)
    assert tasks(actions) == []
    actions = strategy.on(drafted([1], after=[5]), 0.2)
    assert tasks(actions) == []
    [wake] = [action for action in actions if isinstance(action, WakeAt)]
    [task] = tasks(strategy.on(Tick(), wake.at_s))
    assert tokens_of(task) == [1]


def test_a_pass_that_is_long_overdue_is_not_counted_on() -> None:
    strategy, _ = begun(2, drafters=0)
    actions = strategy.on(Tick(), 0.2)
    [wake] = [action for action in actions if isinstance(action, WakeAt)]
    assert wake.at_s >= 0.1 + OVERDUE_PASSES * PASS_S
    [task] = tasks(strategy.on(Tick(), wake.at_s))
    assert (task.verifier, task.block.nodes) == (1, ())


def test_a_lost_drafter_is_followed_by_the_next_best() -> None:
    strategy, _ = begun(2, drafters=2)
    [assign] = [a for a in strategy.on(DrafterLost(1), 0.2) if isinstance(a, SendAssign)]
    assert (assign.author, assign.base) == (2, roll_digest(ROOT, [5]))
