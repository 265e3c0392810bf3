"""Tests of the time limits of a verifier."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.session.stall import ANNOUNCED_S, LEAST_TOKEN_S, LONGEST_S, SLACK, STALL_S, UNKNOWN_TOKEN_S, Watch
from cosine_p2p.trust.peer_memory import UsualSpeeds

HOUR_S = 3600.0
STALLED, TOO_SLOW = "stalled", "too slow"
STEP_S = 0.5
USUAL = UsualSpeeds(pass_s=0.06, prefill_token_s=0.001)


def left_at_s(
    watch: Watch, *, counts: bool = False, is_lone: bool = False, commit_every_s: float = 0.0
) -> tuple[float, str]:
    """Return the time at which a verifier with this pace is left, and the kind of the reason."""
    now_s, reports, began_s = watch.since_s, 0, watch.since_s
    while now_s - began_s < HOUR_S:
        now_s += STEP_S
        reports += counts
        if commit_every_s and (now_s - began_s) % commit_every_s < STEP_S:
            watch.note_commit(now_s)
        if why := watch.why_leave(now_s, report=(reports, 0), is_lone=is_lone):
            return round(now_s - began_s - STEP_S, 3), STALLED if "no progress" in why else TOO_SLOW
    return HOUR_S, ""


def committing(
    *, pass_s: float = 0.06, commits: int = 20, usual: UsualSpeeds = USUAL, announced_s: float = 0.0
) -> Watch:
    watch = Watch(since_s=0.0, usual=usual, announced_pass_s=announced_s)
    for number in range(commits):
        watch.note_commit((number + 1) * pass_s)
    return watch


def test_silence_is_a_stall() -> None:
    assert left_at_s(committing()) == left_at_s(committing(announced_s=HOUR_S)) == (STALL_S, STALLED)
    assert left_at_s(Watch(since_s=7.0)) == (STALL_S, STALLED)


def test_it_is_kept_where_all_are_as_slow_or_nobody_else_is_there() -> None:
    as_usual = committing(pass_s=3.5, commits=1, usual=UsualSpeeds(pass_s=3.0))
    assert left_at_s(as_usual, commit_every_s=3.5) == (HOUR_S, "")
    assert left_at_s(committing(pass_s=3.5, commits=1), commit_every_s=3.5, is_lone=True) == (HOUR_S, "")


def test_a_sole_verifier_is_believed_what_it_announces_for_ten_minutes() -> None:
    assert left_at_s(Watch(since_s=0.0, announced_pass_s=HOUR_S), is_lone=True) == (ANNOUNCED_S, STALLED)
    assert left_at_s(Watch(since_s=0.0, announced_pass_s=70.0), is_lone=True) == (SLACK * 70.0, STALLED)
    assert left_at_s(Watch(since_s=0.0, announced_pass_s=0.06), is_lone=True) == (STALL_S, STALLED)
    assert left_at_s(committing(pass_s=70.0, announced_s=70.0), is_lone=True) == (SLACK * 70.0, STALLED)


def test_a_long_prompt_takes_time_in_proportion() -> None:
    tokens = 2000
    assert left_at_s(Watch(since_s=0.0, prompt_tokens=tokens)) == (tokens * UNKNOWN_TOKEN_S, STALLED)
    slow = UsualSpeeds(prefill_token_s=0.02)
    assert left_at_s(Watch(since_s=0.0, prompt_tokens=tokens, usual=slow)) == (SLACK * 0.02 * tokens, STALLED)
    cached = UsualSpeeds(prefill_token_s=0.0)
    assert left_at_s(Watch(since_s=0.0, prompt_tokens=tokens, usual=cached)) == (tokens * LEAST_TOKEN_S, STALLED)


@given(
    st.floats(0, HOUR_S),
    st.floats(0, LONGEST_S),
    st.integers(0, 20),
    st.booleans(),
    st.booleans(),
    st.integers(1, 1000),
)
def test_waits_are_bounded(
    announced_s: float, pass_s: float, commits: int, counts: bool, is_lone: bool, tokens: int
) -> None:
    watch = Watch(since_s=0.0, usual=USUAL, announced_pass_s=announced_s, prompt_tokens=tokens)
    for number in range(commits):
        watch.note_commit((number + 1) * pass_s)
    most_s = max(ANNOUNCED_S if is_lone else LONGEST_S, tokens * LEAST_TOKEN_S) + STEP_S
    assert left_at_s(watch, counts=counts, is_lone=is_lone)[0] <= most_s
