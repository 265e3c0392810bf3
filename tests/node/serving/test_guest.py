"""A node on a machine of others works when its operator's rules let it, and says why it rests."""

from collections.abc import Iterator
from datetime import time
from time import monotonic, sleep

import pytest

from cosine_node.serving.guest import (
    BUSY_LOOKS,
    CALM_S,
    LOOK_S,
    CardWatch,
    Guest,
    GuestRules,
    Hours,
    Look,
    card_share,
    look_around,
)
from cosine_protocol.errors import UsageError

NIGHT = Hours(time(22), time(7))


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22:00-07:00", (time(22), time(23, 59), time(0), time(6, 59)), (time(7), time(12), time(21, 59))),
        ("9:30-17:00", (time(9, 30), time(16, 59)), (time(9, 29), time(17), time(0))),
    ],
)
def test_hours_begin_on_the_minute_and_may_cross_midnight(
    hours: str, inside: tuple[time, ...], outside: tuple[time, ...]
) -> None:
    parsed = Hours.parse(hours)
    assert all(now in parsed for now in inside) and not any(now in parsed for now in outside)


@pytest.mark.parametrize("bad", ["", "22-7", "25:00-07:00", "22:00-07:60", "22:00", "07:00-07:00", "a:00-b:00"])
def test_other_hours_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="--hours must"):
        Hours.parse(bad)


def day_of(guest: Guest, looks: Iterator[Look]) -> list[tuple[str, str]]:
    """The changes of a day: the time of each and the reason to rest."""
    changes: list[tuple[str, str]] = []
    for look in looks:
        before = guest.reason
        guest.see(look)
        if guest.reason != before:
            changes.append((f"{look.now:%H:%M:%S}", guest.reason))
    return changes


def looks_of_a_day(*, busy: range = range(0), on_battery: range = range(0)) -> Iterator[Look]:
    """A look each `LOOK_S` from midnight on; others take the processor, and the plug is out, in these minutes."""
    for second in range(0, 86_400, int(LOOK_S)):
        minute = second // 60
        yield Look(
            now=time(minute // 60, minute % 60, second % 60),
            monotonic_s=float(second),
            others_share=0.9 if minute in busy else 0.02,
            is_on_battery=minute in on_battery,
        )


def test_a_day_of_a_guest() -> None:
    rules = GuestRules(hours=NIGHT, only_idle=True, on_mains=True)
    changes = day_of(Guest(rules), looks_of_a_day(busy=range(120, 180), on_battery=range(300, 301)))
    assert changes == [
        ("02:00:05", "other programs use the processor"),
        ("03:00:55", ""),
        ("05:00:00", "the machine is on battery"),
        ("05:01:00", ""),
        ("07:00:00", "its hours are 22:00-07:00"),
        ("22:00:00", ""),
    ]


def test_without_rules_a_node_never_rests() -> None:
    assert day_of(Guest(GuestRules()), looks_of_a_day(busy=range(600), on_battery=range(600))) == []
    assert not GuestRules().are_any and GuestRules(on_mains=True).are_any


def test_a_moment_of_work_of_others_does_not_stop_a_node_and_a_pause_in_theirs_does_not_start_it() -> None:
    guest = Guest(GuestRules(only_idle=True))
    at_s = 0.0

    def see(share: float) -> str:
        nonlocal at_s
        at_s += LOOK_S
        guest.see(Look(now=time(12), monotonic_s=at_s, others_share=share))
        return guest.reason

    assert [see(0.9) for _ in range(BUSY_LOOKS - 1)] == [""] * (BUSY_LOOKS - 1)
    assert see(0.0) == ""
    assert [see(0.9) for _ in range(BUSY_LOOKS)][-1]
    assert see(0.0) and see(0.15), "others still work a little"
    assert all(see(0.0) for _ in range(int(CALM_S / LOOK_S) - 1))
    assert see(0.0) == ""


LISTED = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       1111     C     98     20      -      -      -      -    python
    0       2222     G     31      2      -      -      -      -    Xorg
    0       3333   C+G     12      1      -      -      -      -    game
    1       4444     C      -      -      -      -      -      -    idle
    1          -     -      -      -      -      -      -      -    -
"""


def test_the_card_is_busy_by_what_others_compute_and_draw_on_it() -> None:
    lines = LISTED.splitlines()
    assert card_share(lines, own={1111}) == pytest.approx(0.43)
    assert card_share(lines, own={1111, 2222, 3333}) == card_share([], own=()) == 0.0
    assert card_share(lines, own=()) == 1.0
    watch = CardWatch(("printf", "%s", LISTED))
    until_s = monotonic() + 10.0
    while not watch.share({1111}):
        assert monotonic() < until_s
        sleep(0.01)
    assert CardWatch(("no-such-program",)).share(()) == 0.0
    guest = Guest(GuestRules(only_idle=True))
    for at_s in range(BUSY_LOOKS):
        guest.see(Look(now=time(12), monotonic_s=float(at_s), card_share=0.43))
    assert guest.reason == "other programs use the card"


def test_a_look_tells_what_others_take_and_not_what_the_node_takes() -> None:
    looks = look_around(lambda: 7.0)
    first = next(looks)
    assert (first.others_share, first.monotonic_s) == (0.0, 7.0)
    assert sum(range(3_000_000)) and 0.0 <= next(looks).others_share <= 1.0
