"""Who comes back after each disconnection is banned, longer each time; who was disconnected now and then is not."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.flood_bans import APART_S, DISCONNECTED, FIRST_BAN_S, LONGEST_BAN_S, MAX_PEERS, WITHIN_S, FloodBans


def bans_of(bans: FloodBans, peer_id: str, *, first_s: float, each_s: float = APART_S) -> list[float]:
    """What follows from as many disconnections as make a ban."""
    times = range(DISCONNECTED)
    return [bans.note_disconnected(peer_id, now_s=first_s + each_s * number) for number in times]


def test_the_last_of_several_disconnections_bans_for_longer_each_time() -> None:
    bans = FloodBans()
    found = [bans_of(bans, "peer", first_s=100_000.0 * number) for number in range(7)]
    assert all(not any(few) for *few, _ in found)
    assert [last for *_, last in found] == [FIRST_BAN_S * factor for factor in (1, 2, 4, 8, 16, 24, 24)]
    assert bans_of(bans, "other", first_s=1e6)[-1] == FIRST_BAN_S


def test_now_and_then_is_no_flood() -> None:
    assert not any(bans_of(FloodBans(), "peer", first_s=0.0, each_s=WITHIN_S / 2))


def test_calls_that_were_under_way_are_no_new_flood() -> None:
    assert not any(bans_of(FloodBans(), "peer", first_s=0.0, each_s=APART_S / 2))


def test_so_many_are_remembered() -> None:
    bans = FloodBans()
    bans_of(bans, "peer", first_s=0.0)
    for number in range(MAX_PEERS):
        bans.note_disconnected(f"peer {number}", now_s=100.0)
    assert bans_of(bans, "peer", first_s=200.0)[-1] == FIRST_BAN_S


@given(st.lists(st.floats(0, 4 * WITHIN_S), max_size=60))
def test_a_ban_takes_so_many_disconnections_and_ends_within_a_day(pauses_s: list[float]) -> None:
    bans, now_s, found = FloodBans(), 0.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        found.append(bans.note_disconnected("peer", now_s=now_s))
    given_s = [seconds for seconds in found if seconds]
    assert len(given_s) <= len(pauses_s) // DISCONNECTED
    assert given_s == sorted(given_s)
    assert all(FIRST_BAN_S <= seconds <= LONGEST_BAN_S for seconds in given_s)
