"""This machine's clock against those of peers: the median warns, a few liars do not, and what is sure is said."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.dht.peer_clocks import KEEP_S, MAX_SOURCES, PeerClocks

NOW_S = 1_700_000_000.0
LIFETIME_S = 300.0


def problem(ages_s: Iterable[float], *, off_s: float, fresh_s: float = LIFETIME_S) -> str:
    """Return the warning for a clock that is `off_s` ahead, from records of these true ages."""
    clocks, now_s = PeerClocks(), NOW_S + off_s
    for number, age_s in enumerate(ages_s):
        clocks.note(f"peer {number}", issued_s=NOW_S - age_s, oldest_s=fresh_s, now_s=now_s)
    return clocks.problem(now_s)


AGES_S = (5.0, 20.0, 50.0, 80.0, 99.0)


def test_a_clock_that_is_off_is_told_by_how_much_at_least() -> None:
    assert "at least 58 min behind those of 5 peers" in problem(AGES_S, off_s=-3550.0)
    assert "at least 3 h ahead of those of 5 peers" in problem(AGES_S, off_s=3 * 3600.0 + 300.0)
    assert "at least 70 s behind those of 3 peers" in problem([0.0, 1.0, 2.0], off_s=-71.0, fresh_s=20.0)
    assert "at least 52 s ahead of those of 3 peers" in problem([0.0, 1.0, 2.0], off_s=71.0, fresh_s=20.0)


@given(st.lists(st.floats(0, 299), min_size=3, max_size=9), st.lists(st.floats(-1e6, 1e6), max_size=9))
def test_a_minority_of_liars_causes_no_warning(ages_s: list[float], lies_s: list[float]) -> None:
    assert problem([*ages_s, *lies_s[: len(ages_s) - 1]], off_s=0.0) == ""


def test_what_is_long_ago_or_was_noted_by_another_setting_of_the_clock_is_forgotten() -> None:
    clocks = PeerClocks()
    clocks.note("peer", issued_s=NOW_S, oldest_s=LIFETIME_S, now_s=NOW_S - 3600.0)
    assert clocks.problem(NOW_S - 3600.0) != ""
    assert clocks.problem(NOW_S - 3600.0 + KEEP_S + 1) == ""
    assert clocks.problem(NOW_S - 7200.0) == ""
    for number in range(2 * MAX_SOURCES):
        clocks.note(f"other {number}", issued_s=NOW_S, oldest_s=LIFETIME_S, now_s=NOW_S - 3600.0)
    assert f"those of {MAX_SOURCES} peers" in clocks.problem(NOW_S - 3600.0)
