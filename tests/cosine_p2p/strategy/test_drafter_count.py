"""A session allows the drafters that its trial wants, and tells people what was measured."""

from cosine_p2p.strategy.speed_trial import SpeedTrial
from cosine_p2p.strategy.trial_run import USELESS_COMMITS, DrafterCount
from cosine_protocol.limits import HOME_AUTHOR


def follow(count: DrafterCount, *, began_s: float, commits: int, every_s: float) -> float:
    """Note commits of one token at even distances; the time of the next one."""
    for number in range(commits):
        count.note_commit(bytes(1), now_s=began_s + number * every_s)
    return began_s + commits * every_s


def test_without_a_trial_nothing_is_decided() -> None:
    count = DrafterCount(None, left_tokens=100)
    follow(count, began_s=0.0, commits=50, every_s=0.1)
    assert (count.allowed, count.why()) == (None, "")


def test_drafters_slower_than_the_verifiers_plain_pass_are_compared_at_once_and_let_go() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=200)
    # The verifier announced a busy moment; a pass that was quicker counts.
    count.note_pass(0.040)
    count.note_pass(0.010)
    assert count.why() == "drafters: at most 3; measured here against that: nothing yet"
    now_s = follow(count, began_s=0.0, commits=20, every_s=0.021)
    count.note_commit(bytes((1, 0)), now_s=now_s)
    now_s = follow(count, began_s=now_s + 0.021, commits=9, every_s=0.021)
    assert count.allowed == 0
    now_s = follow(count, began_s=now_s, commits=15, every_s=0.010)
    assert count.allowed == 3
    now_s = follow(count, began_s=now_s, commits=USELESS_COMMITS, every_s=0.021)
    assert count.allowed == 0
    assert count.why() == "drafters: none; measured here against that: 3 0.52x (± 25%)"


def test_home_drafts_that_drafters_take_the_place_of_count_where_there_are_none() -> None:
    """Each second pass brings one drafted token; two drafts of the verifier's own are there where none came."""
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=2000)
    count.note_pass(0.1)
    for number in range(300):
        is_drafted = count.allowed and number % 2
        authors = bytes((1, 0)) if is_drafted else bytes((HOME_AUTHOR, HOME_AUTHOR, 0))
        count.note_commit(authors, now_s=0.1 * number)
    assert count.allowed == 0


def test_drafters_of_which_nothing_comes_while_passes_take_longer_are_left_without_a_look() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=2000)
    count.note_pass(0.01)
    follow(count, began_s=0.0, commits=USELESS_COMMITS, every_s=0.02)
    assert count.allowed == 3
    count.note_commit(bytes(1), now_s=0.02 * USELESS_COMMITS)
    assert count.allowed == 0
    assert "3 0.50x" in count.why()


def test_what_the_verifier_copies_from_the_text_counts_for_nobody() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=2000)
    count.note_pass(0.1)
    for number in range(300):
        count.note_commit(bytes((1, 0)) if count.allowed else bytes(3), now_s=0.1 * number)
    assert count.allowed == 3


def test_what_was_measured_ends_with_the_verifier() -> None:
    count = DrafterCount(SpeedTrial((0, 3)), left_tokens=200)
    assert count.allowed == 0
    count.end()
    assert count.allowed is None
    count.note_pass(0.01)
    count.note_commit(bytes(1), now_s=1.0)
