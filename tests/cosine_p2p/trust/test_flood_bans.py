"""Who comes back after each disconnection is to be banned; who was disconnected now and then is not."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.denied_peers import (
    APART_S,
    DISCONNECTED,
    FIRST_BAN_S,
    LONGEST_BAN_S,
    MAX_PEERS,
    WITHIN_S,
    FloodBans,
    ban_s,
)


def bans_of(bans: FloodBans, peer_id: str, *, first_s: float, each_s: float = APART_S) -> list[bool]:
    """What follows from as many disconnections as make a ban."""
    times = range(DISCONNECTED)
    return [bans.note_disconnected(peer_id, now_s=first_s + each_s * number) for number in times]


def test_the_last_of_several_disconnections_bans() -> None:
    bans = FloodBans()
    assert bans_of(bans, "peer", first_s=0.0) == [False] * (DISCONNECTED - 1) + [True]
    assert bans_of(bans, "other", first_s=1e6)[-1]
    assert bans_of(bans, "peer", first_s=2e6)[-1]


@given(st.integers(0, 10**9))
def test_each_ban_lasts_twice_as_long_as_the_one_before_and_a_day_at_most(earlier: int) -> None:
    assert [ban_s(number) / FIRST_BAN_S for number in range(7)] == [1, 2, 4, 8, 16, 24, 24]
    assert FIRST_BAN_S <= ban_s(earlier) <= ban_s(earlier + 1) <= LONGEST_BAN_S


def test_now_and_then_is_no_flood() -> None:
    assert not any(bans_of(FloodBans(), "peer", first_s=0.0, each_s=WITHIN_S / 2))


def test_calls_that_were_under_way_are_no_new_flood() -> None:
    assert not any(bans_of(FloodBans(), "peer", first_s=0.0, each_s=APART_S / 2))


def test_so_many_are_remembered() -> None:
    bans = FloodBans()
    bans_of(bans, "peer", first_s=0.0)
    for number in range(MAX_PEERS):
        bans.note_disconnected(f"peer {number}", now_s=100.0)
    assert bans_of(bans, "peer", first_s=200.0) == [False] * (DISCONNECTED - 1) + [True]


@given(st.lists(st.floats(0, 4 * WITHIN_S), max_size=60))
def test_a_ban_takes_so_many_disconnections(pauses_s: list[float]) -> None:
    bans, now_s, given_bans = FloodBans(), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        given_bans += bans.note_disconnected("peer", now_s=now_s)
    assert given_bans <= len(pauses_s) // DISCONNECTED
