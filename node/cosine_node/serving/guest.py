"""The rests of a node: outside its hours, while other programs use the machine, or on battery.

Theory of operation
-------------------
`look_around` measures the machine every `LOOK_S`; `Guest` decides with `GuestRules` whether the node rests. It
rests at once when its hours end or the machine runs on battery, and after `BUSY_LOOKS` looks in which other
programs took more than `BUSY_SHARE` of the processor or of an NVIDIA card. It works again when no rule applies, and
only `CALM_S` after other programs have ended, so that a short pause of a user does not start it.

A resting node takes no new requests and its record expires (`cosine_node.serving.node`). Drafters leave
their requests, which lose only drafts; verifiers and stages finish theirs.
"""

import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time
from time import monotonic
from typing import Any, Final, Self

from cosine_protocol.errors import UsageError

LOOK_S: Final = 5.0
BUSY_SHARE: Final = 0.25
"""A browser at rest, updates and a desktop stay below it; a game, a build or a film do not."""
CALM_SHARE: Final = 0.1
BUSY_LOOKS: Final = 2
CALM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Hours:
    """The time of day in which a node works, by the local clock; it may cross midnight. `end` is excluded."""

    begin: time
    end: time

    @classmethod
    def parse(cls, written: str) -> Self:
        """Parse `22:00-07:00`. Raises `UsageError`."""
        found = re.fullmatch(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", written.strip())
        try:
            if found is None:
                raise ValueError
            begin_h, begin_min, end_h, end_min = map(int, found.groups())
            hours = cls(time(begin_h, begin_min), time(end_h, end_min))
        except ValueError:
            raise UsageError(f"--hours must be like 22:00-07:00, not {written!r}.") from None
        if hours.begin == hours.end:
            raise UsageError("--hours must begin and end at different times.")
        return hours

    def __contains__(self, now: time) -> bool:
        if self.begin < self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


def parse_pause(written: str, *, option: str) -> float:
    """Parse a time such as 30m, 90s or 2h as seconds. Raises `UsageError` with the name of the option."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh]?)", written.strip(), re.ASCII)
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not seconds:
        raise UsageError(f"{option} takes a time such as 30m, 90s or 2h, not {written!r}.")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRules:
    """An operator's rules for a node that is a guest on its machine.

    hours: The node works in these hours only. Default: always.
    only_idle: It works only while other programs leave the processor and the card idle.
    on_mains: It works only while the machine is not on battery.
    """

    hours: Hours | None = None
    only_idle: bool = False
    on_mains: bool = False

    @property
    def are_any(self) -> bool:
        return self.hours is not None or self.only_idle or self.on_mains


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The machine at one time.

    now: Time of day by the local clock.
    monotonic_s: Time of a clock that never jumps.
    others_share: Share of the processor that other programs took since the last look, 0..1.
    card_share: The same of the NVIDIA card that they use most; 0 if it cannot be seen.
    is_on_battery: False also for machines without one.
    """

    now: time
    monotonic_s: float
    others_share: float = 0.0
    card_share: float = 0.0
    is_on_battery: bool = False


class Guest:
    """Decides from one look after the other whether the node rests. Pure."""

    def __init__(self, rules: GuestRules) -> None:
        self._rules = rules
        self._busy_looks = 0
        self._busy_at_s: float | None = None
        self._busy_part = ""
        self.reason = ""
        """Why the node rests, as a clause. "" if it works."""

    def see(self, look: Look) -> None:
        """Take a look, and decide."""
        self._note_others(look)
        rules = self._rules
        if rules.hours is not None and look.now not in rules.hours:
            self.reason = f"its hours are {rules.hours}"
        elif rules.on_mains and look.is_on_battery:
            self.reason = "the machine is on battery"
        elif rules.only_idle and self._busy_at_s is not None:
            self.reason = f"other programs use the {self._busy_part}"
        else:
            self.reason = ""

    def _note_others(self, look: Look) -> None:
        share = max(look.others_share, look.card_share)
        self._busy_looks = self._busy_looks + 1 if share > BUSY_SHARE else 0
        if self._busy_looks >= BUSY_LOOKS or (self._busy_at_s is not None and share > CALM_SHARE):
            self._busy_at_s = look.monotonic_s
            self._busy_part = "card" if look.card_share > look.others_share else "processor"
        elif self._busy_at_s is not None and look.monotonic_s - self._busy_at_s >= CALM_S:
            self._busy_at_s = None


def card_share(listed: Iterable[str], own: Collection[int]) -> float:
    """The share that processes without `own` ids take of a card, by the lines of `nvidia-smi pmon`."""
    taken: dict[tuple[str, str], float] = {}
    for line in listed:
        match line.split():
            # A later line is a newer measurement, or of a newer process.
            case [card, pid, _, share, *_] if share.isdecimal() and pid.isdecimal() and int(pid) not in own:
                taken[card, pid] = int(share) / 100
    cards = {card for card, _ in taken}
    return min(
        1.0, max((sum(share for (on, _), share in taken.items() if on == card) for card in cards), default=0.0)
    )


class CardWatch:
    """Polls `nvidia-smi`, which comes with the driver, without waiting for it."""

    def __init__(self, command: Sequence[str] = ("nvidia-smi", "pmon", "-c", "1", "-s", "u")) -> None:
        self._command = command
        self._asking: subprocess.Popen[str] | None = None
        self._share = 0.0

    def share(self, own: Collection[int]) -> float:
        """The latest `card_share`. Without the program it is 0."""
        if self._asking is None or self._asking.poll() is not None:
            if self._asking is not None:
                self._share = card_share(self._asking.communicate()[0].splitlines(), own)
            with suppress(OSError):
                self._asking = subprocess.Popen(
                    self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
        return self._share


def look_around(monotonic_s: Callable[[], float], card: CardWatch | None = None) -> Iterator[Look]:
    """Yield a look each time it is asked for one. The first has no share of others."""
    # A client does not have it.
    import psutil

    own = psutil.Process()
    before: tuple[float, float, float] | None = None
    while True:
        times = psutil.cpu_times()
        idle_s, all_s = times.idle + getattr(times, "iowait", 0.0), sum(times) - getattr(times, "guest", 0.0)
        own_s = _seconds_of(own, gone=psutil.Error)
        share = 0.0
        if before is not None and (passed_s := all_s - before[1]) > 0:
            busy_s = passed_s - (idle_s - before[0])
            share = min(1.0, max(0.0, (busy_s - max(0.0, own_s - before[2])) / passed_s))
        before = idle_s, all_s, own_s
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        yield Look(
            now=datetime.now().time(),
            monotonic_s=monotonic_s(),
            others_share=share,
            card_share=0.0 if card is None else card.share({own.pid, *(each.pid for each in own.children(True))}),
            is_on_battery=battery is not None and not battery.power_plugged,
        )


def looks_for(rules: GuestRules) -> Iterator[Look] | None:
    """The looks that rules need. None if there are no rules."""
    card = CardWatch() if rules.only_idle else None
    return look_around(monotonic, card) if rules.are_any else None


def _seconds_of(own: Any, *, gone: type[Exception]) -> float:
    """The processor time of this node and its children, such as its network daemon. Raises nothing for `gone`."""
    total_s = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except gone:
            continue
        total_s += spent.user + spent.system
    return total_s
