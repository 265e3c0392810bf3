"""Chooses the number of drafters by the speed of real requests, at a bounded cost. Pure.

One number, the present *way*, is used. Texts differ more than ways do, so another way is measured within a text:
in a *look* it generates a stretch of commits, which is compared with the stretches before. The worth of a commit is
the number of plain passes that it replaces. Looks cost at most `PRICE` of the time. Plain decoding needs no look:
its speed is known from the verifier's shortest pass, and drafters that have cost `ADVANCE_PASSES` against it are
left.

Clients (`cosine_p2p.client`) and coordinating verifiers have a `SpeedTrial` for each path, which all requests on it
share; each request has a `DrafterCount`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.moving_average import moving_average
from cosine_protocol.stream import MAX_AUTHORS
from cosine_protocol.verify import HOME_AUTHOR

MEMORY_LOOKS: Final = 8.0  # Maximum weight of former looks. Eight reduce the error to a third of one look's.
USUAL_NOISE: Final = 0.25
"""Prior error of a look: runs of 1 to 8 accepted tokens, over a stretch. It weighs as much as one look."""


@dataclass(slots=True)
class Gain:
    """The logarithm of another way's speed relative to the present one: a discounted mean and its error."""

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
        return math.sqrt((USUAL_NOISE**2 + looks * self.square) / looks / looks)


PRICE: Final = 0.01  # Share of the time that looks may cost; client's and verifier's trials together 2 %.
ADVANCE_PASSES: Final = 3.0  # Passes that drafts may cost at a new verifier before any have been saved.
MOST_OWED_AT_ONCE: Final = 0.5  # At least six commits are measured: the first drafts take time, one may stall.
# Stretches. Half as long a stretch has 1.4 times the noise, and differences would seldom be certain. A look with
# its settling needs an answer of 36 tokens; one of twice the length 72, which short answers do not have.
STRETCH_COMMITS: Final = 12
LEAST_COMMITS: Final = STRETCH_COMMITS // 2  # At the end of a request half a stretch counts.
SETTLE_TOKENS: Final = 2 * STRETCH_COMMITS  # Then a way is settled without drafts: none come in time.
SETTLE_COMMITS: Final = 2  # Commits after a change of way that still belong to the former way.
LOOK_TOKENS: Final = STRETCH_COMMITS + SETTLE_TOKENS
LOOK_COMMITS: Final = STRETCH_COMMITS + 4  # With those to settle, at round-trip times up to a few passes.
# Averages: over more samples a change is noticed later, over fewer noise looks like a change.
LEVEL_WEIGHT: Final = 0.3  # The present way's speed is that of its last few stretches.
USUAL_WEIGHT: Final = 0.1  # The number of home drafts per commit is the average of about ten commits.
CERTAIN: Final = 1.5
"""Standard errors by which a way must be faster: one wrong change in fifteen, which later looks undo. With 1.0 the
16 recorded answers took up to 5 % longer, with 2.0 they were no faster (simulated)."""
WORST_GAIN: Final = -1.0  # Minimum in the price of another look, which is then due after 2,700 commits.
DOUBTFUL_GAIN: Final = -0.3
"""The expected gain of drafters where few of them pay: with a draft head six questions of 62 took at least a
quarter longer (`cosine-node bench here --cores`)."""
PAUSE: Final = 4  # Stretches of the present way between looks: at most one commit in five is of another way.


class SpeedTrial:
    """The measurements of `ways`, of which the first is used until another is found to be faster."""

    def __init__(self, ways: Sequence[int]) -> None:
        self.way = ways[0]
        # Of the other ways with drafters.
        self._gains = {way: Gain() for way in ways[1:] if way}
        self._level: float | None = None
        self._stretches = PAUSE - 1
        self._credit_s = 0.0
        self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
        self._is_looking = False

    def begin_without(self) -> None:
        """Continue without drafts, which may not pay."""
        self._gains = {way: Gain(mean=DOUBTFUL_GAIN) for way in (self.way, *self._gains) if way}
        self.way = 0

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "way": self.way,
            "credit_s": self._credit_s,
            "gains": {str(way): [gain.looks, gain.mean, gain.square] for way, gain in self._gains.items()},
        }

    @classmethod
    def of_state(cls, state: Any) -> "SpeedTrial":
        """Return the trial of a state."""
        trial = cls((int(state["way"]),))
        trial._gains = {int(way): Gain(*map(float, gain)) for way, gain in state["gains"].items()}
        trial._credit_s = float(state["credit_s"])
        return trial

    @property
    def ways(self) -> frozenset[int]:
        return frozenset((0, self.way, *self._gains))

    @property
    def may_pay(self) -> bool:
        """False if drafters were found not to pay."""
        return self.way != 0 or not any(gain.looks for gain in self._gains.values())

    def measured(self) -> dict[int, tuple[float, float]]:
        """Return other ways' speeds relative to the present one, with their relative standard errors."""
        return {way: (math.exp(gain.mean), gain.error) for way, gain in self._gains.items() if gain.looks}

    def next_look(self, left_tokens: int) -> int | None:
        """Return the way that a request should look at now, None for none. End the look with `end_look`."""
        if self._is_looking or self._level is None or self._stretches < PAUSE or left_tokens < LOOK_TOKENS:
            return None
        due = [way for way in self._gains if self._price_s(way) <= self._credit_s]
        if not due:
            return None
        self._is_looking = True
        # Of equally promising ways the one with fewer drafts disturbs less.
        return max(
            due, key=lambda way: (not self._gains[way].looks, self._gains[way].mean + self._gains[way].error, -way)
        )

    def _price_s(self, way: int) -> float:
        """Return the expected additional seconds of a look, negative if it saves time."""
        present_s = math.exp(-(self._level or 0.0))
        return LOOK_COMMITS * present_s * (math.exp(-max(self._gains[way].mean, WORST_GAIN)) - 1.0)

    def note_time(self, seconds: float) -> None:
        self._credit_s += PRICE * seconds

    def end_stretch(self, speed: float) -> None:
        """Note a stretch of the present way, in plain passes per second."""
        self._level = moving_average(self._level, math.log(speed), weight=LEVEL_WEIGHT)
        self._stretches += 1

    def end_look(self, way: int, speed: float | None, *, worth: int, seconds: float) -> None:
        """Judge a look by its speed in plain passes per second (None: too short), and pay for all of it."""
        self._is_looking = False
        if self._level is None:
            return
        self._credit_s -= max(0.0, seconds - worth * math.exp(-self._level))
        if speed is None or way not in self._gains:
            return
        gain = self._gains[way]
        gain.add(math.log(speed) - self._level)
        self._stretches = 0
        if gain.mean > CERTAIN * gain.error:
            self._take(way, self._gains.pop(way))

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
            self._credit_s -= self._owed_passes / plain_speed
            self._level = math.log(self._owing_worth / self._owing_s)
            plain = Gain()
            plain.add(max(0.0, math.log(plain_speed) - self._level))
            self._owed_passes, self._owing_s, self._owing_worth = 0.0, 0.0, 0
            self._take(0, plain)

    def _take(self, way: int, taken: Gain) -> None:
        for other in self._gains.values():
            other.mean -= taken.mean
        if self.way:
            self._gains[self.way] = Gain(looks=taken.looks, mean=-taken.mean, square=taken.square)
        self.way = way
        self._level = (self._level or 0.0) + taken.mean


class DrafterCount:
    """The number of drafters of one request, by its commits; None, the strategy's choice, without a trial."""

    def __init__(self, trial: SpeedTrial | None, *, left_tokens: int) -> None:
        self._trial = trial
        self._left_tokens = left_tokens
        self._committed_s: float | None = None
        self._least_pass_s = math.inf
        self._home_tokens = 0.0
        if trial is not None:
            look = trial.next_look(left_tokens)
            self._begin(trial.way if look is None else look, is_look=look is not None)

    def _begin(self, way: int, *, is_look: bool = False, is_settled: bool = False) -> None:
        """Begin a stretch. Commits until drafts of the way have come, or too few can come, do not count."""
        self._way, self._is_look, self._is_settled = way, is_look, is_settled
        self._settling_commits = self._settling_tokens = 0
        self._commits, self._worth, self._seconds = 0, 0, 0.0
        self._look_worth, self._look_s = 0, 0.0

    @property
    def allowed(self) -> int | None:
        return None if self._trial is None else self._way

    @property
    def may_pay(self) -> bool:
        return self._trial is None or self._way != 0 or self._trial.may_pay

    def note_pass(self, pass_s: float) -> None:
        """Note the time of a pass; the minimum is that of a plain one."""
        if pass_s > 0.0:
            self._least_pass_s = min(self._least_pass_s, pass_s)

    def note_commit(self, authors: bytes, *, now_s: float) -> None:
        """Note the authors of a commit's tokens; home drafts, which every way has, count as drafted."""
        before_s, self._committed_s = self._committed_s, now_s
        trial = self._trial
        if trial is None or before_s is None:
            return
        home = authors.count(HOME_AUTHOR)
        drafted = sum(0 < author <= MAX_AUTHORS for author in authors)
        if not drafted:
            self._home_tokens = moving_average(self._home_tokens, home, weight=USUAL_WEIGHT)
        worth, seconds = 1 + drafted + home, now_s - before_s
        self._left_tokens -= len(authors)
        trial.note_time(seconds)
        self._note(trial, worth, seconds, tokens=len(authors), is_drafted=drafted > 0)
        # A pass over copied tokens takes longer with any drafter.
        if len(authors) == worth and self._least_pass_s < math.inf and not self._is_look and self._way == trial.way:
            if self._way:
                plain_speed = (1.0 + self._home_tokens) / self._least_pass_s
                trial.owe(worth=worth, seconds=seconds, plain_speed=plain_speed)
            if self._way != trial.way:
                self._begin(trial.way)

    def _note(self, trial: SpeedTrial, worth: int, seconds: float, *, tokens: int, is_drafted: bool) -> None:
        self._look_worth += worth
        self._look_s += seconds
        if not self._is_settled:
            self._settling_commits += 1
            self._settling_tokens += tokens
            is_shown = is_drafted == bool(self._way) and self._settling_commits > SETTLE_COMMITS
            self._is_settled = is_shown or self._settling_tokens >= SETTLE_TOKENS
            return
        self._commits += 1
        self._worth += worth
        self._seconds += seconds
        if self._commits >= STRETCH_COMMITS:
            self._end_stretch(trial)
            if (look := trial.next_look(self._left_tokens)) is not None:
                self._begin(look, is_look=True)

    def _end_stretch(self, trial: SpeedTrial) -> None:
        is_whole = self._commits >= LEAST_COMMITS and self._seconds > 0.0
        speed = self._worth / self._seconds if is_whole else None
        if self._is_look:
            trial.end_look(self._way, speed, worth=self._look_worth, seconds=self._look_s)
        elif speed is not None and self._way == trial.way:
            trial.end_stretch(speed)
        self._begin(trial.way, is_settled=self._way == trial.way)

    def end(self) -> None:
        if self._trial is not None:
            self._end_stretch(self._trial)
            self._trial = None

    def why(self) -> str:
        """Return the allowed number and the measured speeds as text."""
        if self._trial is None:
            return ""
        told = [
            f"{way} {ratio:.2f}x (± {error:.0%})"
            for way, (ratio, error) in sorted(self._trial.measured().items(), reverse=True)
        ]
        count = f"at most {self._way}" if self._way else "none"
        return f"drafters: {count}; measured here against that: {', '.join(told) or 'nothing yet'}"


MAX_TRIALS: Final = 64  # Bounds memory: the number of paths that a client remembers.
USUAL_RIGHT: Final = 400
"""A general drafter is right at 410 to 490 of a thousand positions of general questions
(`docs/benchmarks/agreement.json`). If more are needed a new client begins without drafters."""


@dataclass(frozen=True, slots=True)
class TrialPath:
    """The key of measurements: the server and the temperature."""

    server: str
    temperature: float

    @classmethod
    def of(cls, server: str, temperature: float) -> "TrialPath":
        return cls(server, round(temperature, 1))


class SpeedTrials:
    """The trials of one set of ways by path, at most `MAX_TRIALS`, least recently used first."""

    def __init__(self, ways: Sequence[int]) -> None:
        self.ways = tuple(ways)
        self._trials: Remembered[TrialPath, SpeedTrial] = Remembered(MAX_TRIALS)

    def known(self, path: TrialPath) -> SpeedTrial | None:
        return self._trials.get(path)

    def find(self, path: TrialPath, *, break_even: int | None = None) -> SpeedTrial:
        """Return a path's trial; a new one begins without drafts where few of them pay."""
        trial = self._trials.get(path)
        if trial is None:
            trial = SpeedTrial(self.ways)
            if break_even is not None and break_even > USUAL_RIGHT:
                trial.begin_without()
        self._trials.note(path, trial)
        return trial

    def state(self) -> list[dict[str, Any]]:
        """Return the state as JSON values, the trial used last at the end."""
        return [
            {"server": path.server, "temperature": path.temperature, **trial.state()}
            for path, trial in self._trials.items()
        ]

    def restore(self, states: Any) -> None:
        """Restore the trials of these ways from a state."""
        for state in states[-MAX_TRIALS:]:
            trial = SpeedTrial.of_state(state)
            if trial.ways == frozenset(self.ways):
                self._trials.note(TrialPath.of(state["server"], state["temperature"]), trial)
