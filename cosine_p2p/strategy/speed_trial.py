"""Measures which of a few ways to generate is the fastest, at a bounded cost. Pure.

The ways take turns on real requests, in stretches of some commits. Texts differ more than ways do, so the worth of
a commit is the number of plain passes that it replaces. A look at another way is compared with the stretches
before and after it. Looks cost at most `PRICE` of the time; they become rarer while the present way is the fastest.

Clients (`cosine_p2p.client`) and coordinating verifiers compare numbers of drafters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.moving_average import moving_average

MEMORY_LOOKS: Final = 8.0
"""Maximum weight of former looks. Eight reduce the error to a third of one look's; at the longest pauses they span
6,000 commits."""
USUAL_NOISE: Final = 0.25
"""Prior error of a look: runs of 1 to 8 accepted tokens, over a stretch. It weighs as much as one look."""


@dataclass(slots=True)
class Gain:
    """The logarithm of another way's speed relative to the present one, with the weight of its looks."""

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
        """The standard error of the mean."""
        looks = max(self.looks, 1.0)
        variance = (USUAL_NOISE**2 + looks * self.square) / looks
        return math.sqrt(variance / looks)


PRICE: Final = 0.01  # Share of the time that looks may cost; client's and verifier's trials together 2 %.
ADVANCE_PASSES: Final = 3.0  # Passes that drafts may cost at a new verifier before any have been saved.
MOST_OWED_AT_ONCE: Final = 0.5  # At least six commits are measured: the first drafts take time, one may stall.
# Stretches. Half as long a stretch has 1.4 times the noise, and differences would seldom be certain. A look with
# its settling needs an answer of 36 tokens; one of twice the length 72, which short answers do not have.
STRETCH_COMMITS: Final = 12
LEAST_COMMITS: Final = STRETCH_COMMITS // 2
"""Minimum of a stretch, and the length of the first one, so that slow drafters end soon."""
SETTLE_TOKENS: Final = 2 * STRETCH_COMMITS  # Then a way is settled without drafts: none come in time.
SETTLE_COMMITS: Final = 2  # Commits after a change of way that still belong to the former way.
# Averages: over more samples a change is noticed later, over fewer noise looks like a change.
LEVEL_WEIGHT: Final = 0.3  # The present way's speed is that of its last few stretches.
# Evidence, in the logarithm of plain passes per second. Too low a threshold changes the way by chance, and each
# change costs settling and another look; too high a threshold keeps a slow way.
TRUSTED_LOOKS: Final = 2.0  # Before a second look the expectation counts too.
CERTAIN: Final = 1.5
"""Standard errors by which a way must be faster: one wrong change in fifteen, which later looks undo. With 1.0 the
16 recorded answers took up to 5 % longer, with 2.0 they were no faster (simulated)."""
CERTAIN_AT_ONCE: Final = 2.0
"""The same for a first look, else it is compared with one more stretch. Without it the prompts of `cosine-node
bench rtt` took 16 % longer at 50 ms."""
# Minimum gain (0.37x) in the price of another look, which is then due after 2,700 commits.
WORST_GAIN: Final = -1.0
DOUBTFUL_GAIN: Final = -0.3
"""The expected gain of drafters where few of them pay: with a draft head six questions of 62 took at least a
quarter longer (`cosine-node bench here --cores`)."""
# Pauses between looks, in stretches of the present way; they bound how often another way generates a text, at the
# longest one time in 64. A change of speed is noticed at the next look, at most about 800 commits later.
FIRST_PAUSE: Final = 4
LONGEST_PAUSE: Final = 16 * FIRST_PAUSE


@dataclass(slots=True)
class _Look:
    """An ended look, with the levels before and after it."""

    way: int
    level: float
    beside: list[float]

    @property
    def gain(self) -> float:
        return self.level - sum(self.beside) / len(self.beside)


class SpeedTrial:
    """The measurements of `ways`, of which the first is used until another is found to be faster.

    All requests that share a verifier share a trial; each has a `TrialRun` of it. `expect` sets a way's expected
    speed, by default that of the present one.
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self.way = ways[0]
        self._gains = {way: Gain() for way in ways[1:]}
        self._expected: dict[int, float] = {}
        self._level: float | None = None
        self._looked: _Look | None = None
        self._pause = FIRST_PAUSE
        self._stretches = FIRST_PAUSE - 1
        self._total_s = 0.0
        self._spent_s = 0.0
        self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
        self._is_looking = False
        self.is_untried = False

    def similar(self) -> "SpeedTrial":
        """Return a trial for a harder path that begins with the same way, with gains of drafts as upper bounds."""
        new = SpeedTrial((self.way, *self._gains))
        if not self.way:
            new._gains = {way: Gain(mean=min(0.0, gain.mean)) for way, gain in self._gains.items()}
        new._expected = dict(self._expected)
        new.is_untried = self.is_untried
        return new

    def begin_without(self) -> None:
        """Continue without drafts, which may not pay. `is_untried` is true until the first look."""
        self._gains = {way: Gain(mean=DOUBTFUL_GAIN) for way in (self.way, *self._gains) if way}
        self.way = 0
        self.is_untried = True

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
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
    def of_state(cls, state: Any) -> "SpeedTrial":
        """Return the trial of a state."""
        gains = {int(way): Gain(*map(float, gain)) for way, gain in state["gains"].items()}
        trial = cls((int(state["way"]), *gains))
        trial._gains = gains
        trial._total_s, trial._spent_s = float(state["total_s"]), float(state["spent_s"])
        trial._stretches, trial._pause = int(state["stretches"]), int(state["pause"])
        trial.is_untried = bool(state["is_untried"])
        return trial

    @property
    def ways(self) -> frozenset[int]:
        return frozenset((self.way, *self._gains))

    @property
    def stretch_commits(self) -> int:
        return LEAST_COMMITS if self._level is None or self._looked is not None else STRETCH_COMMITS

    def expect(self, way: int, speed: float) -> None:
        """Set the expected speed of a way, in plain passes per second."""
        self._expected[way] = speed

    def next_look(self, left_tokens: int) -> int | None:
        """Return the way that a request should look at now, None for none. End the look with `end_look`."""
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
        # Of equally promising ways the one with fewer drafts disturbs less.
        return max(
            due, key=lambda way: (not self._gains[way].looks, self._gain(way) + self._gains[way].error, -way)
        )

    def _gain(self, way: int) -> float:
        gain, expected = self._gains[way], self._expected.get(way)
        if gain.looks >= TRUSTED_LOOKS or expected is None or self._level is None:
            return gain.mean
        hoped = math.log(expected) - self._level
        return max(gain.mean, hoped) if gain.looks else hoped

    def _price_s(self, way: int) -> float:
        """Return the expected additional seconds of a look, negative if it saves time."""
        level = self._level or 0.0
        gain = max(self._gain(way), WORST_GAIN)
        # With the commits to settle, at round-trip times up to a few passes.
        look_commits = STRETCH_COMMITS + 4
        return look_commits * (math.exp(-level - gain) - math.exp(-level))

    def spend(self, *, worth: int, seconds: float, is_price: bool) -> None:
        """Add to the total time; with `is_price`, the excess over the present way was spent on looking."""
        self._total_s += seconds
        if is_price and self._level is not None:
            self._spent_s = max(0.0, self._spent_s + seconds - worth * math.exp(-self._level))

    def end_stretch(self, speed: float) -> None:
        """Note a stretch of the present way, in plain passes per second; after a look, judge it."""
        level = math.log(speed)
        self._level = moving_average(self._level, level, weight=LEVEL_WEIGHT)
        self._stretches += 1
        if (look := self._looked) is not None:
            look.beside.append(level)
            # A slightly faster first look may be due to the texts, and is compared once more.
            is_first = not self._gains[look.way].looks
            is_doubtful = CERTAIN * USUAL_NOISE < look.gain < CERTAIN_AT_ONCE * USUAL_NOISE
            if not (is_first and is_doubtful) or len(look.beside) > 2:
                self._looked = None
                self._judge(look)

    def owe(self, *, worth: int, seconds: float, plain_speed: float) -> None:
        """Note a commit of the present way; continue without drafts once they have cost `ADVANCE_PASSES`.

        The cost is the time lost against `plain_speed` passes per second, less the time saved. What is left of it
        when drafts end counts as spent on looking.
        """
        self._owed_passes += min(seconds * plain_speed - worth, MOST_OWED_AT_ONCE)
        # Their speed is that of the commits since they last owed nothing.
        self._owing_s += seconds
        self._owing_worth += worth
        if self._owed_passes <= 0.0:
            self._owed_passes, self._owing_s, self._owing_worth = max(self._owed_passes, -ADVANCE_PASSES), 0.0, 0
        elif self._owed_passes > ADVANCE_PASSES:
            self._spent_s += self._owed_passes / plain_speed
            self._level = math.log(self._owing_worth / self._owing_s)
            self._gains[0] = Gain()
            self._gains[0].add(max(0.0, math.log(plain_speed) - self._level))
            self._looked = None
            self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
            self._take(0)

    def end_look(self, way: int, speed: float | None) -> None:
        """Note a look in plain passes per second (None: too short); the next stretch judges it."""
        self._is_looking = False
        if speed is not None and way != self.way and self._level is not None:
            self._looked = _Look(way, math.log(speed), [self._level])

    def _judge(self, look: _Look) -> None:
        way, gain = look.way, self._gains[look.way]
        gain.add(look.gain)
        self.is_untried = False
        self._stretches = 0
        if gain.mean < -CERTAIN * gain.error:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif gain.mean > CERTAIN * gain.error:
            self._take(way)

    def _take(self, way: int) -> None:
        taken = self._gains.pop(way)
        for other in self._gains.values():
            other.mean -= taken.mean
        self._gains[self.way] = Gain(looks=taken.looks, mean=-taken.mean, square=taken.square)
        self.way = way
        self._level = (self._level or 0.0) + taken.mean
        self._pause = FIRST_PAUSE

    def measured(self) -> dict[int, tuple[float, float]]:
        """Return each way's speed relative to the present one, with its relative standard error."""
        return {way: (math.exp(gain.mean), gain.error) for way, gain in self._gains.items() if gain.looks}


MAX_TRIALS: Final = 64  # Bounds memory: the number of paths that a client remembers.


USUAL_RIGHT: Final = 400
"""A general drafter is right at 410 to 490 of a thousand positions of general questions
(`docs/benchmarks/agreement.json`). If more are needed a new client begins without drafters."""
NEAR_S: Final = 0.01
FAR_TIMES: Final = 4.0  # Round trips up to `NEAR_S`, or within this factor, are one class (decision 16).


@dataclass(frozen=True, slots=True)
class TrialPath:
    """The key of measurements: the server, its class of distances, and the temperature."""

    server: str
    temperature: float
    distance: int = 0

    @classmethod
    def of(cls, server: str, temperature: float, rtt_s: float = 0.0) -> "TrialPath":
        times = max(1.0, rtt_s / NEAR_S)
        return cls(server, round(temperature, 1), math.ceil(math.log(times, FAR_TIMES)))

    def is_harder(self, other: "TrialPath") -> bool:
        """Return whether drafts gain no more here than on another path: as far or farther, as random or more."""
        return (
            self.server == other.server
            and self.distance >= other.distance
            and self.temperature >= other.temperature
        )


class SpeedTrials:
    """The trials of one set of ways by path, at most `MAX_TRIALS`, least recently used first."""

    def __init__(self, ways: Sequence[int]) -> None:
        self.ways = tuple(ways)
        self._trials: Remembered[TrialPath, SpeedTrial] = Remembered(MAX_TRIALS)

    def known(self, path: TrialPath) -> SpeedTrial | None:
        return self._trials.get(path)

    def find(self, path: TrialPath, *, break_even: int | None = None) -> SpeedTrial | None:
        """Return a path's trial, None without ways. A new one begins like that of the most similar easier path."""
        if not self.ways:
            return None
        trial = self._trials.get(path)
        if trial is None:
            easier = [(other, trial) for other, trial in self._trials.items() if path.is_harder(other)]
            if easier:
                trial = max(easier, key=lambda pair: (pair[0].distance, pair[0].temperature))[1].similar()
            else:
                trial = SpeedTrial(self.ways)
            if trial.way and break_even is not None and break_even > USUAL_RIGHT:
                trial.begin_without()
        self._trials.note(path, trial)
        return trial

    def state(self) -> list[dict[str, Any]]:
        """Return the state as JSON values, the trial used last at the end."""
        return [
            {"server": path.server, "temperature": path.temperature, "distance": path.distance, **trial.state()}
            for path, trial in self._trials.items()
        ]

    def restore(self, states: Any) -> None:
        """Restore the trials of these ways from a state."""
        for state in states[-MAX_TRIALS:]:
            trial = SpeedTrial.of_state(state)
            if trial.ways == frozenset(self.ways):
                path = TrialPath(state["server"], round(state["temperature"], 1), int(state["distance"]))
                self._trials.note(path, trial)
