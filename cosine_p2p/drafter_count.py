"""The number of drafters that one session allows, as its trial finds it on the clock. Pure."""

from cosine_p2p.speed_trial import SpeedTrial, TrialRun


class DrafterCount:
    """Follows a session's commits; `allowed` drafters may draft, None for as many as the strategy likes."""

    def __init__(self, trial: SpeedTrial | None, *, left_tokens: int) -> None:
        self._run: TrialRun | None = None if trial is None else trial.begin(left_tokens=left_tokens)
        self._committed_s: float | None = None

    @property
    def allowed(self) -> int | None:
        return None if self._run is None else self._run.way

    def expect_pass(self, pass_s: float) -> None:
        """Take in the verifier's word for its plain pass: one token a pass is the speed without drafters."""
        if self._run is not None and pass_s > 0.0:
            self._run.trial.expect(0, 1.0 / pass_s)

    def note_commit(self, tokens: int, *, has_drafts: bool, now_s: float) -> None:
        """Take in a commit; `has_drafts` if drafters drafted any of its tokens."""
        before_s, self._committed_s = self._committed_s, now_s
        if self._run is not None and before_s is not None:
            shows_way = has_drafts == bool(self._run.way)
            self._run.note(tokens=tokens, seconds=now_s - before_s, shows_way=shows_way)

    def end(self) -> None:
        """The request has ended, or goes on at another verifier, of which nothing was measured."""
        if self._run is not None:
            self._run.end()
            self._run = None

    def why(self) -> str:
        """The allowed number with the measured speeds, for people; empty if nothing is measured any more."""
        if self._run is None:
            return ""
        told = []
        for way, speed in sorted(self._run.trial.measured().items(), reverse=True):
            error = f" (± {speed.error:.0%})" if speed.error else ""
            told.append(f"{speed.tokens_per_s:.1f} with {way or 'none'}{error}")
        count = f"at most {self._run.way}" if self._run.way else "none"
        return f"drafters: {count}; tokens/s here: {', '.join(told) or 'not measured yet'}"
