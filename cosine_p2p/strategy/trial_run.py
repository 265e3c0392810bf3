"""The part of one request in a speed trial: its commits as stretches of one way and looks at another. Pure."""

import math
from dataclasses import dataclass, field
from typing import Final

from cosine_p2p.strategy.moving_average import moving_average
from cosine_p2p.strategy.speed_trial import LEAST_COMMITS, SETTLE_COMMITS, SETTLE_TOKENS, SpeedTrial
from cosine_protocol.limits import HOME_AUTHOR, MAX_AUTHORS

USUAL_WEIGHT: Final = 0.1  # The number of home drafts per commit is the average of about ten commits.


@dataclass(slots=True)
class Stretch:
    """Commits of one way since it was chosen or the last stretch ended; `worth` is in plain passes."""

    is_look: bool = False
    is_settled: bool = False
    settle_commits: int = 0
    settle_tokens: int = 0
    settle_worth: int = 0
    settle_s: float = 0.0
    commits: int = 0
    worth: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class TrialRun:
    """The part of one request in a trial: `note` each commit, and continue with `way`."""

    trial: SpeedTrial
    left_tokens: int
    way: int = field(init=False)
    _stretch: Stretch = field(init=False)
    _pays_return: bool = False
    _is_first: bool = True

    def __post_init__(self) -> None:
        self.way = self.trial.way
        self._stretch = Stretch()
        self._maybe_look()

    def note(self, *, tokens: int, drafted: int, worth: int, seconds: float) -> None:
        """Note a commit, `seconds` after the last one; `drafted` of its tokens are of the way's drafts.

        `worth` is the number of plain passes that it replaces: one, and one for each token of drafts that depend
        on the way.
        """
        self.left_tokens -= tokens
        stretch = self._stretch
        self.trial.spend(worth=worth, seconds=seconds, is_price=stretch.is_look or self._pays_return)
        if not stretch.is_settled:
            stretch.settle_commits += 1
            stretch.settle_tokens += tokens
            stretch.settle_worth += worth
            stretch.settle_s += seconds
            is_shown = bool(drafted) == bool(self.way) and stretch.settle_commits > SETTLE_COMMITS
            stretch.is_settled = is_shown or stretch.settle_tokens >= SETTLE_TOKENS
            self._pays_return = self._pays_return and not stretch.is_settled
            return
        stretch.commits += 1
        stretch.worth += worth
        stretch.seconds += seconds
        if stretch.commits >= self.trial.stretch_commits:
            self._end_stretch()
            self._maybe_look()

    def end(self) -> None:
        """End the request. One too short for a stretch counts from its first commit."""
        stretch = self._stretch
        if self._is_first and stretch.commits < LEAST_COMMITS:
            stretch.commits += stretch.settle_commits
            stretch.worth += stretch.settle_worth
            stretch.seconds += stretch.settle_s
        self._end_stretch()

    def owe(self, *, worth: int, seconds: float, plain_speed: float) -> None:
        """Leave the present way if its drafts cost too much; a look continues."""
        trial = self.trial
        if not self._stretch.is_look and self.way == trial.way != 0:
            trial.owe(worth=worth, seconds=seconds, plain_speed=plain_speed)
            if self.way != trial.way:
                self._stretch, self.way = Stretch(), trial.way

    def _end_stretch(self) -> None:
        stretch, trial = self._stretch, self.trial
        is_whole = stretch.commits >= LEAST_COMMITS and stretch.seconds > 0.0
        speed = stretch.worth / stretch.seconds if is_whole else None
        if stretch.is_look:
            trial.end_look(self.way, speed)
        elif speed is not None and self.way == trial.way:
            trial.end_stretch(speed)
        self._is_first = False
        has_changed = trial.way != self.way
        self._pays_return = stretch.is_look and has_changed
        self._stretch = Stretch(is_settled=not has_changed)
        self.way = trial.way

    def _maybe_look(self) -> None:
        way = self.trial.next_look(self.left_tokens)
        if way is not None:
            self.way, self._stretch = way, Stretch(is_look=True)


class DrafterCount:
    """The number of drafters by a session's commits; `allowed` may draft, None for the strategy's choice."""

    def __init__(self, trial: SpeedTrial | None, *, left_tokens: int) -> None:
        self._run: TrialRun | None = None if trial is None else TrialRun(trial, left_tokens)
        self._committed_s: float | None = None
        self._least_pass_s = math.inf
        self._home_tokens = 0.0

    @property
    def allowed(self) -> int | None:
        return None if self._run is None else self._run.way

    @property
    def may_pay(self) -> bool:
        """False if drafters were found not to pay."""
        return self._run is None or self._run.way != 0 or self._run.trial.is_untried

    def note_pass(self, pass_s: float) -> None:
        """Note the time of a pass; the minimum is that of a plain one."""
        if self._run is not None and 0.0 < pass_s < self._least_pass_s:
            self._least_pass_s = pass_s
            self._expect_none(self._run)

    def note_commit(self, authors: bytes, *, now_s: float) -> None:
        """Note the authors of a commit's tokens; home drafts, which every way has, count as drafted."""
        before_s, self._committed_s = self._committed_s, now_s
        if self._run is not None and before_s is not None:
            home = authors.count(HOME_AUTHOR)
            drafted = sum(0 < author <= MAX_AUTHORS for author in authors)
            if not drafted:
                self._home_tokens = moving_average(self._home_tokens, home, weight=USUAL_WEIGHT)
                self._expect_none(self._run)
            worth = 1 + drafted + home
            seconds = now_s - before_s
            self._run.note(tokens=len(authors), drafted=drafted, worth=worth, seconds=seconds)
            # A pass over copied tokens takes longer whoever drafts.
            if self._least_pass_s < math.inf and len(authors) == worth:
                plain_speed = (1.0 + self._home_tokens) / self._least_pass_s
                self._run.owe(worth=worth, seconds=seconds, plain_speed=plain_speed)

    def _expect_none(self, run: TrialRun) -> None:
        if self._least_pass_s < math.inf:
            run.trial.expect(0, (1.0 + self._home_tokens) / self._least_pass_s)

    def end(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def why(self) -> str:
        """Return the allowed number and the measured speeds as text."""
        if self._run is None:
            return ""
        now = self._run.way
        told = [
            f"{way or 'none'} {ratio:.2f}x (± {error:.0%})"
            for way, (ratio, error) in sorted(self._run.trial.measured().items(), reverse=True)
        ]
        count = f"at most {now}" if now else "none"
        return f"drafters: {count}; measured here against that: {', '.join(told) or 'nothing yet'}"
