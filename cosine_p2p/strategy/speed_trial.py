"""Finds by measurement which of a few ways to generate is the fastest here, at a bounded price. Pure.

The ways take turns on real requests, in stretches of some commits. Texts differ more than ways do, so a commit is
worth only the plain passes that the ways can spare. A look at another way is compared with the stretches just
before and after it. Looks cost at most `PRICE` of all the time; where nothing changes they become rarer, and
frequent again when the speed does. Drafts can gain no more than the tokens they brought.

The client compares numbers of drafters (`cosine_p2p.client`), and so does a verifier that coordinates.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.moving_average import moving_average

MEMORY_LOOKS: Final = 8.0
"""Older looks fade. So many bring the error down to a third of one look's; at the longest pauses they go back 6,000
commits."""
USUAL_NOISE: Final = 0.25
"""A look's error before any was measured: runs of 1 to 8 accepted tokens, over a stretch. It stays one look's worth
of the error."""


@dataclass(slots=True)
class Gain:
    """How much faster another way is than the present one, as a logarithm, with the weight of its looks."""

    looks: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    def add(self, sample: float) -> None:
        self.looks = min(self.looks, MEMORY_LOOKS - 1.0) + 1.0
        change = sample - self.mean
        self.mean += change / self.looks
        self.square += (change * (sample - self.mean) - self.square) / self.looks

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        looks = max(self.looks, 1.0)
        variance = (USUAL_NOISE**2 + looks * self.square) / looks
        return math.sqrt(variance / looks)


@dataclass(frozen=True, slots=True)
class MeasuredRatio:
    """Times as fast as the present way, with its standard error as a share."""

    ratio: float
    error: float


PRICE: Final = 0.01  # Share of the time that looks may cost: client's and verifier's trial 2 % together.
ADVANCE_PASSES: Final = 3.0  # What drafts may cost at a new verifier before anything has paid for a look at them.
MOST_OWED_AT_ONCE: Final = 0.5  # So six commits at least are waited for: drafts take some, one may stall.
# Stretches. The noise of one is `USUAL_NOISE`; of half as long a one it would be 1.4 times that, and seldom would a
# difference be sure. A look, with what it takes to settle, needs an answer of 36 tokens; one of twice the length
# 72, which short answers never have.
STRETCH_COMMITS: Final = 12
LEAST_COMMITS: Final = STRETCH_COMMITS // 2
"""A shorter stretch does not count; the first of all need not be longer, so that slow drafters go soon."""
SETTLE_TOKENS: Final = 2 * STRETCH_COMMITS  # Then a way is settled though none was drafted: none comes in time.
SETTLE_COMMITS: Final = 2  # Commits after a change of way that still show the way before.
# Averages. One over more samples notices a change later, one over fewer takes noise for a change; each spans about
# what its value varies over.
LEVEL_WEIGHT: Final = 0.3  # The present way's speed is that of its last few stretches.
USUAL_WEIGHT: Final = 0.1  # A usual commit is that of the last ten or so, about a stretch.
# Evidence, in the logarithm of plain passes a second. To ask for too little changes the way by chance, and each
# change costs settling and another look; to ask for too much keeps a way that is slow.
TRUSTED_LOOKS: Final = 2.0  # Until a second look, what is expected counts too.
CERTAIN: Final = 1.5
"""Standard errors by which a way must be faster: one wrong change in fifteen, which later looks undo. With one
error 16 recorded answers took up to 5 % longer, with two they came no sooner (simulated)."""
CERTAIN_AT_ONCE: Final = 2.0
"""The same for a first look, else it is compared with one more stretch. Without that the prompts of `cosine-node
bench rtt` took 16 % longer at 50 ms."""
WORST_GAIN: Final = -1.0
"""A way that seemed slower than 0.37x is looked at again as if it had been that fast: after 2,700 commits, by its
price."""
DOUBTFUL_GAIN: Final = -0.3
"""What drafters may do where few of them pay: beside a draft head six questions of 62 took a quarter longer or more
(`cosine-node bench here --cores`)."""
CHANGED: Final = 0.3  # News since the last look: averages of stretches differ by half of it by usual noise.
# Times between looks, in stretches of the present way. `PRICE` bounds what looks cost; pauses bound how often a
# text is written another way, at the longest one time in 64, and twice as often at half of that. A change of the
# present way's speed is noticed at once (`CHANGED`), one of another way's alone at its next look, some 800 commits
# later; at twice the pause it would be 1,600.
FIRST_PAUSE: Final = 4
LONGEST_PAUSE: Final = 16 * FIRST_PAUSE
MAX_STATE: Final = 1e12  # Bounds what is read from a file: far above any sum of seconds, and not infinite.


@dataclass(slots=True)
class _Look:
    """A look that has ended, and levels beside it; `worth`: log of the plain passes that a commit stood for."""

    way: int
    level: float
    worth: float
    beside: list[float]


@dataclass(slots=True)
class _Left:
    """The way that was left, its level then, and how far stretches of the new way fall short of it."""

    way: int
    level: float
    shortfall: Gain = field(default_factory=Gain)


class SpeedTrial:
    """What is known of `ways`, the first of which is taken until another has shown to be faster.

    One trial serves all requests that share a verifier; each has a `TrialRun` of it. The speed of a way may be
    expected (`expect`), default that of the present one.
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self.way = ways[0]
        self._gains = {way: Gain() for way in ways[1:]}
        self._expected: dict[int, float] = {}
        self._level: float | None = None
        self._level_at_look: float | None = None
        self._left: _Left | None = None
        self._looked: _Look | None = None
        self._pause = FIRST_PAUSE
        self._stretches = FIRST_PAUSE - 1
        self._usual_s: dict[bool, float | None] = {True: None, False: None}
        self._worth: float | None = None
        self._total_s = 0.0
        self._spent_s = 0.0
        self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
        self._is_looking = False
        self.is_untried = False

    def similar(self) -> "SpeedTrial":
        """A trial for a harder path, begun by the same way. Without drafts their known worth is an upper bound."""
        new = SpeedTrial((self.way, *self._gains))
        if not self.way:
            new._gains = {way: Gain(mean=min(0.0, gain.mean)) for way, gain in self._gains.items()}
        new._expected = dict(self._expected)
        new.is_untried = self.is_untried
        return new

    def begin_without(self, feared: float = WORST_GAIN) -> None:
        """Go on without drafts, of which a look is expected to gain `feared`. It `is_untried` until one was."""
        self._gains = {way: Gain(mean=feared) for way in (self.way, *self._gains) if way}
        self.way = 0
        self.is_untried = True

    def state(self) -> dict[str, Any]:
        """Values of JSON for another process."""
        return {
            "way": self.way,
            "total_s": self._total_s,
            "spent_s": self._spent_s,
            "stretches": self._stretches,
            "pause": self._pause,
            "is_untried": self.is_untried,
            "gains": {str(way): [gain.looks, gain.mean, gain.square] for way, gain in self._gains.items()},
        }

    @classmethod
    def of_state(cls, state: Any, ways: Sequence[int]) -> "SpeedTrial":
        """The trial that a state describes. Raises `ValueError` for one that is broken or not of these ways."""
        try:
            gains = {
                int(way): Gain(float(looks), float(mean), float(square))
                for way, (looks, mean, square) in state["gains"].items()
            }
            trial = cls((int(state["way"]), *gains))
            trial._gains = gains
            trial._total_s, trial._spent_s = float(state["total_s"]), float(state["spent_s"])
            trial._stretches, trial._pause = int(state["stretches"]), int(state["pause"])
            trial.is_untried = bool(state.get("is_untried", False))
        except (TypeError, KeyError, AttributeError, OverflowError):
            raise ValueError("no trial") from None
        numbers = [trial._total_s, trial._spent_s, *(n for g in gains.values() for n in (g.looks, g.square))]
        is_sound = all(0.0 <= number < MAX_STATE for number in numbers) and 1 <= trial._pause <= LONGEST_PAUSE
        if sorted((trial.way, *gains)) != sorted(ways) or not is_sound or trial._stretches < 0:
            raise ValueError("no trial")
        if any(not abs(gain.mean) < MAX_STATE for gain in gains.values()):
            raise ValueError("no trial")
        return trial

    @property
    def stretch_commits(self) -> int:
        return LEAST_COMMITS if self._level is None or self._looked is not None else STRETCH_COMMITS

    def expect(self, way: int, speed: float) -> None:
        """Expect a way to be worth so many plain passes a second."""
        self._expected[way] = speed

    def next_look(self, left_tokens: int) -> int | None:
        """The way that a request should look at now, None for none. End it with `end_look`."""
        if self._is_looking or self._looked or self._level is None or self._stretches < self._pause:
            return None
        allowed_s = PRICE * self._total_s - self._spent_s
        due = [
            way
            for way in self._gains
            if left_tokens >= STRETCH_COMMITS + (SETTLE_TOKENS if way else SETTLE_COMMITS)
            and self._price_s(way) <= allowed_s
        ]
        if not due:
            return None
        self._is_looking = True
        # Of ways as promising, that with fewer drafts is in nobody's way.
        return max(
            due, key=lambda way: (not self._gains[way].looks, self._gain(way) + self._gains[way].error, -way)
        )

    def _gain(self, way: int) -> float:
        """The measured gain of a way; until enough looks were, what is expected if that is more."""
        gain, expected = self._gains[way], self._expected.get(way)
        if gain.looks >= TRUSTED_LOOKS or expected is None or self._level is None:
            return gain.mean
        hoped = math.log(expected) - self._level
        return max(gain.mean, hoped) if gain.looks else hoped

    def _price_s(self, way: int) -> float:
        """The seconds that a look is likely to take longer than going on as before; it may save some."""
        level = self._level or 0.0
        gain = max(self._gain(way), WORST_GAIN)
        # With those it takes to settle, at round-trip times up to that of a few passes.
        look_commits = STRETCH_COMMITS + 4
        return look_commits * (math.exp(-level - gain) - math.exp(-level))

    def note_usual(self, seconds: float, *, has_others: bool) -> None:
        """Take in a commit of the present way without drafts of its own."""
        self._usual_s[has_others] = moving_average(self._usual_s[has_others], seconds, weight=USUAL_WEIGHT)

    @property
    def burden(self) -> float:
        """Times that a commit takes with tokens of neither way, against one without, at least 1."""
        with_others_s, alone_s = self._usual_s[True], self._usual_s[False]
        return max(1.0, with_others_s / alone_s) if with_others_s and alone_s else 1.0

    def spend(self, *, worth: int, seconds: float, is_price: bool) -> None:
        """Book time; with `is_price`, the excess over the present way was spent on looking."""
        self._total_s += seconds
        if is_price and self._level is not None:
            self._spent_s = max(0.0, self._spent_s + seconds - worth * math.exp(-self._level))

    def end_stretch(self, speed: float, *, worth: float) -> None:
        """Take in a stretch of the present way, in plain passes a second and a commit; after a look, judge it."""
        level = math.log(speed)
        self._doubt_change(level)
        self._level = moving_average(self._level, level, weight=LEVEL_WEIGHT)
        self._worth = moving_average(self._worth, math.log(worth), weight=LEVEL_WEIGHT)
        self._stretches += 1
        if (look := self._looked) is not None:
            look.beside.append(level)
            # A first look that was a little faster may have met a slow text, and is compared once more.
            is_first = not self._gains[look.way].looks
            is_doubtful = CERTAIN * USUAL_NOISE < self._gain_of(look) < CERTAIN_AT_ONCE * USUAL_NOISE
            if not (is_first and is_doubtful) or len(look.beside) > 2:
                self._looked = None
                self._judge(look)
        elif self._level_at_look is not None and abs(self._level - self._level_at_look) > CHANGED:
            self._pause, self._level_at_look = FIRST_PAUSE, self._level

    def owe(self, *, worth: int, seconds: float, plain_speed: float) -> None:
        """Take in a commit of the present way; go on without drafts once those in use owe `ADVANCE_PASSES`.

        They owe what commits take longer than without drafts, at `plain_speed` passes a second, and pay by what
        they save. What they owe when they go was spent on looking.
        """
        self._owed_passes += min(seconds * plain_speed - worth, MOST_OWED_AT_ONCE)
        # How fast they are is that of the commits since they last owed nothing.
        self._owing_s += seconds
        self._owing_worth += worth
        if self._owed_passes <= 0.0:
            self._owed_passes, self._owing_s, self._owing_worth = max(self._owed_passes, -ADVANCE_PASSES), 0.0, 0
        elif self._owed_passes > ADVANCE_PASSES:
            self._spent_s += self._owed_passes / plain_speed
            self._level = math.log(self._owing_worth / self._owing_s)
            self._leave(math.log(plain_speed) - self._level)

    def _leave(self, gain: float) -> None:
        """Go on without drafts, which is faster by the logarithm `gain`, or as fast."""
        self._gains[0] = Gain()
        self._gains[0].add(max(0.0, gain))
        self._looked = None
        self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
        self._take(0)

    def end_look(self, way: int, speed: float | None, *, worth: float) -> None:
        """Take in a look in plain passes a second (None: too short) and a commit; the next stretch judges it."""
        self._is_looking = False
        if speed is not None and way != self.way and self._level is not None:
            self._looked = _Look(way, math.log(speed), math.log(worth), [self._level])

    def _gain_of(self, look: _Look) -> float:
        """How much faster a look was than the present way, as a logarithm, as far as that can be."""
        gain = look.level - sum(look.beside) / len(look.beside)
        if self.way == 0:
            return min(gain, look.worth)
        return max(gain, -(self._worth or 0.0)) if look.way == 0 else gain

    def _judge(self, look: _Look) -> None:
        way, gain = look.way, self._gains[look.way]
        gain.add(self._gain_of(look))
        self.is_untried = False
        self._stretches = 0
        self._level_at_look = self._level
        if gain.mean < -CERTAIN * gain.error:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif gain.mean > CERTAIN * gain.error:
            self._take(way)

    def _doubt_change(self, level: float) -> None:
        """Forget the way before if this one falls short of it: one look may have been luck."""
        if (left := self._left) is None:
            return
        left.shortfall.add(left.level - level)
        if left.shortfall.mean > CERTAIN * left.shortfall.error:
            self._gains[left.way] = Gain()
            self._stretches = self._pause
            self._left = None
        elif left.shortfall.looks == FIRST_PAUSE:
            self._left = None

    def _take(self, way: int) -> None:
        """Go on by another way; all gains are counted anew from it."""
        taken = self._gains.pop(way)
        for other in self._gains.values():
            other.mean -= taken.mean
        self._gains[self.way] = Gain(looks=taken.looks, mean=-taken.mean, square=taken.square)
        self._left = _Left(self.way, self._level or 0.0)
        self.way = way
        self._level = (self._level or 0.0) + taken.mean
        self._level_at_look = self._level
        self._pause = FIRST_PAUSE

    def measured(self) -> dict[int, MeasuredRatio]:
        return {
            way: MeasuredRatio(math.exp(gain.mean), gain.error) for way, gain in self._gains.items() if gain.looks
        }


MAX_TRIALS: Final = 64  # Bounds memory: kinds of requests at verifiers that a client remembers.


USUAL_RIGHT: Final = 400
DEAR_BREAK_EVEN: Final = 700
"""Of a thousand positions of general questions a general drafter is right at 410 to 490 (`cosine-node bench
agreement`). Where more are needed drafters hardly pay: a new client begins without."""


def feared_gain(break_even: int | None) -> float | None:
    """What drafters may do where so many of a thousand drafts must come true; None: no harm."""
    if break_even is None or break_even <= USUAL_RIGHT:
        return None
    return WORST_GAIN if break_even > DEAR_BREAK_EVEN else DOUBTFUL_GAIN


NEAR_S: Final = 0.01
FAR_TIMES: Final = 4.0  # Times up to the first are alike, and such as differ by less (decision 16).


@dataclass(frozen=True, slots=True)
class TrialPath:
    """Who serves requests, in which class of distances, and how they sample: what was measured holds for these."""

    server: str
    temperature: float
    distance: int = 0

    @classmethod
    def of(cls, server: str, temperature: float, rtt_s: float = 0.0) -> "TrialPath":
        times = max(1.0, rtt_s / NEAR_S)
        return cls(server, round(temperature, 1), math.ceil(math.log(times, FAR_TIMES)))

    def is_harder(self, other: "TrialPath") -> bool:
        """True if drafts are worth no more here than on another path: nobody is nearer, no text easier to guess."""
        return (
            self.server == other.server
            and self.distance >= other.distance
            and self.temperature >= other.temperature
        )


class SpeedTrials:
    """Trials of one set of ways by path; the latest `MAX_TRIALS` are kept."""

    def __init__(self, ways: Sequence[int]) -> None:
        self.ways = tuple(ways)
        self._trials: Remembered[TrialPath, SpeedTrial] = Remembered(MAX_TRIALS)

    def known(self, path: TrialPath) -> SpeedTrial | None:
        return self._trials.get(path)

    def find(self, path: TrialPath, *, break_even: int | None = None) -> SpeedTrial | None:
        """None: no ways. A new one begins like the nearest no harder, or without drafters where few pay."""
        if not self.ways:
            return None
        trial = self._trials.get(path)
        if trial is None:
            easier = [(other, trial) for other, trial in self._trials.items() if path.is_harder(other)]
            if easier:
                trial = max(easier, key=lambda pair: (pair[0].distance, pair[0].temperature))[1].similar()
            else:
                trial = SpeedTrial(self.ways)
            if trial.way and (feared := feared_gain(break_even)) is not None:
                trial.begin_without(feared)
        self._trials.note(path, trial)
        return trial

    def state(self) -> list[dict[str, Any]]:
        """Values of JSON, the trial used last at the end."""
        return [
            {"server": path.server, "temperature": path.temperature, "distance": path.distance, **trial.state()}
            for path, trial in self._trials.items()
        ]

    def restore(self, states: Any) -> None:
        """Take in the state of another process without what is broken or of other ways."""
        for state in states[-MAX_TRIALS:] if isinstance(states, list) else ():
            match state:
                case {"server": str(server), "temperature": float(temperature), "distance": int(distance)}:
                    with suppress(ValueError):
                        path = TrialPath(server, round(temperature, 1), distance)
                        self._trials.note(path, SpeedTrial.of_state(state, self.ways))
