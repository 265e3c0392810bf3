"""One request's part in a speed trial: its commits as stretches of one way and looks at another. Pure."""

from dataclasses import dataclass, field

from cosine_p2p.speed_trial import LEAST_COMMITS, SETTLE_COMMITS, SETTLE_TOKENS, SpeedTrial


@dataclass(slots=True)
class Stretch:
    """Commits under one way since it was taken or since the last stretch ended; `worth` is in plain passes."""

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
    """One request's part in a trial: tell it each commit, and go on by `way`."""

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

    def note(self, *, tokens: int, drafted: int, worth: int, seconds: float, is_fed: bool | None = None) -> None:
        """A commit of so many tokens, of which the way's drafts added `drafted`, so long after the one before.

        `worth` is the plain passes it took the place of: one, one for each of those, and one for each token of
        drafts that there would be more or fewer of under another way. `is_fed` says whether its pass was fed
        drafts of the way, None if that is not known or others than the way drafted.
        """
        self.left_tokens -= tokens
        stretch = self._stretch
        if is_fed is not None and not stretch.is_look:
            self.trial.note_pace(seconds, worth=worth, is_fed=is_fed)
        has_others = tokens > worth
        if stretch.is_settled and not stretch.is_look and not drafted:
            self.trial.note_usual(seconds, has_others=has_others)
        if has_others:
            seconds /= self.trial.burden
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
        """The request has ended. One too short for a stretch counts from its first commit, as its user saw it."""
        stretch = self._stretch
        if self._is_first and stretch.commits < LEAST_COMMITS:
            stretch.commits += stretch.settle_commits
            stretch.worth += stretch.settle_worth
            stretch.seconds += stretch.settle_s
        self._end_stretch()

    def leave_useless(self) -> None:
        """Leave the present way if its drafts, which brought nothing lately, seem to cost much; a look goes on."""
        stretch, trial = self._stretch, self.trial
        seconds = stretch.settle_s + stretch.seconds
        if not stretch.is_look and self.way == trial.way and seconds > 0.0:
            trial.leave_useless((stretch.settle_worth + stretch.worth) / seconds)
            if self.way != trial.way:
                self._stretch, self.way = Stretch(), trial.way

    def _end_stretch(self) -> None:
        stretch, trial = self._stretch, self.trial
        is_whole = stretch.commits >= LEAST_COMMITS and stretch.seconds > 0.0
        speed = stretch.worth / stretch.seconds if is_whole else None
        worth = stretch.worth / max(1, stretch.commits)
        if stretch.is_look:
            trial.end_look(self.way, speed, worth=worth)
        elif speed is not None and self.way == trial.way:
            trial.end_stretch(speed, worth=worth)
        self._is_first = False
        has_changed = trial.way != self.way
        self._pays_return = stretch.is_look and has_changed
        self._stretch = Stretch(is_settled=not has_changed)
        self.way = trial.way

    def _maybe_look(self) -> None:
        way = self.trial.next_look(self.left_tokens)
        if way is not None:
            self.way, self._stretch = way, Stretch(is_look=True)
