"""A session allows the drafters that its trial wants, and tells people what was measured."""

from cosine_p2p.drafter_count import DrafterCount
from cosine_p2p.speed_trial import SpeedTrial


def follow(count: DrafterCount, *, began_s: float, commits: int, tokens: int, every_s: float) -> float:
    """Note commits at even distances; the time of the last one."""
    for number in range(commits):
        count.note_commit(tokens, has_drafts=bool(count.allowed), now_s=began_s + number * every_s)
    return began_s + commits * every_s


def test_without_a_trial_nothing_is_decided() -> None:
    count = DrafterCount(None, left_tokens=100)
    follow(count, began_s=0.0, commits=50, tokens=1, every_s=0.1)
    assert count.allowed is None


def test_drafters_slower_than_the_verifiers_plain_pass_are_compared_at_once_and_let_go() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=200)
    count.expect_pass(0.010)
    assert count.why() == "drafters: at most 3; tokens/s here: not measured yet"
    now_s = follow(count, began_s=0.0, commits=22, tokens=1, every_s=0.020)
    assert count.allowed == 0
    follow(count, began_s=now_s, commits=30, tokens=1, every_s=0.010)
    assert count.why() == "drafters: none; tokens/s here: 50.0 with 3 (± 20%), 100.0 with none"


def test_what_was_measured_ends_with_the_verifier() -> None:
    count = DrafterCount(SpeedTrial((0, 3)), left_tokens=200)
    assert count.allowed == 0
    count.end()
    assert count.allowed is None
    count.expect_pass(0.01)
    count.note_commit(1, has_drafts=False, now_s=1.0)
