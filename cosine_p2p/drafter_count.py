"""The number of drafters that one session allows, as its trial finds it on the clock. Pure."""

import math
from typing import Final

from cosine_p2p.speculation.moving_average import moving_average
from cosine_p2p.speed_trial import STRETCH_COMMITS, SpeedTrial
from cosine_p2p.trial_run import TrialRun
from cosine_protocol.limits import HOME_AUTHOR

HOME_WEIGHT: Final = 0.1
"""A choice: about the last ten commits without a drafter's token say what home drafts bring."""
USELESS_COMMITS: Final = 2 * STRETCH_COMMITS
"""A choice: drafters of which so many commits in a row show nothing can only cost time; no clock has to say so."""


class DrafterCount:
    """Follows a session's commits; `allowed` drafters may draft, None for as many as the strategy likes."""

    def __init__(self, trial: SpeedTrial | None, *, left_tokens: int) -> None:
        self._run: TrialRun | None = None if trial is None else TrialRun(trial, left_tokens)
        self._committed_s: float | None = None
        self._least_pass_s = math.inf
        self._home_tokens = 0.0
        self._useless_commits = 0

    @property
    def allowed(self) -> int | None:
        return None if self._run is None else self._run.way

    def note_pass(self, pass_s: float) -> None:
        """Take in how long a pass took, or takes by the verifier's word; a plain one takes no longer than any."""
        if self._run is not None and 0.0 < pass_s < self._least_pass_s:
            self._least_pass_s = pass_s
            self._expect_none(self._run)

    def note_commit(self, authors: bytes, *, now_s: float) -> None:
        """Take in the authors of a commit's tokens: prompt lookup in the verifier is no drafter's.

        Home drafts count as if they were. A verifier makes them where drafters promise less, so they are what is
        there without drafters.
        """
        before_s, self._committed_s = self._committed_s, now_s
        if self._run is not None and before_s is not None:
            home = authors.count(HOME_AUTHOR)
            drafted = sum(map(bool, authors)) - home
            if not drafted:
                self._home_tokens = moving_average(self._home_tokens, home, weight=HOME_WEIGHT)
                self._expect_none(self._run)
            self._useless_commits = 0 if drafted or not self._run.way else self._useless_commits + 1
            worth = 1 + drafted + home
            self._run.note(tokens=len(authors), drafted=drafted, worth=worth, seconds=now_s - before_s)
            if self._useless_commits >= USELESS_COMMITS:
                self._useless_commits = 0
                self._run.leave_useless()

    def _expect_none(self, run: TrialRun) -> None:
        """Without drafters each pass brings its own token, and what home drafts bring where no drafter's came."""
        if self._least_pass_s < math.inf:
            run.trial.expect(0, (1.0 + self._home_tokens) / self._least_pass_s)

    def end(self) -> None:
        """The request has ended, or goes on at another verifier, of which nothing was measured."""
        if self._run is not None:
            self._run.end()
            self._run = None

    def why(self) -> str:
        """The allowed number with the measured speeds, for people; empty if nothing is measured any more."""
        if self._run is None:
            return ""
        now = self._run.way
        told = [
            f"{way or 'none'} {measured.ratio:.2f}x (± {measured.error:.0%})"
            for way, measured in sorted(self._run.trial.measured().items(), reverse=True)
        ]
        count = f"at most {now}" if now else "none"
        return f"drafters: {count}; measured here against that: {', '.join(told) or 'nothing yet'}"
