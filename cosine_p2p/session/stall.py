"""The time limits of a verifier, derived from measurements, not from its own statements. Pure.

Only commits are progress. A verifier that reports passes without committing may serve others, and gets `COUNTING`
times as long. If no other verifier is left, its announced pass time counts too, up to `ANNOUNCED_S`.
"""

from dataclasses import dataclass, field
from typing import Final

from cosine_p2p.transport.channel import SILENCE_S
from cosine_p2p.transport.patience import JOIN_PATIENCE_S
from cosine_p2p.trust.peer_memory import UsualSpeeds

# A stalled verifier costs its user as much time as a dead connection: `SILENCE_S`. A busy one gets `SLACK` times
# the measured time. With half of it clients would leave honest verifiers whenever they are busy; with twice as much
# a verifier that only reports passes could hold a text for 35 s. A liar costs 4 to 20 s, once (docs/security.md).
CHECK_EVERY_S: Final = 0.5  # Maximum delay until a stall is noticed.
STALL_S: Final = SILENCE_S - CHECK_EVERY_S  # A verifier without a commit for this time stalls, by default.
SLACK: Final = 5  # Factor of the time that this or other verifiers took before.
COUNTING: Final = SLACK  # Further factor for a verifier that reports passes, since it may serve others.
LONE_S: Final = JOIN_PATIENCE_S  # Minimum for a sole verifier that works, as for a lost one.
ANNOUNCED_S: Final = 600.0
"""Maximum by announced passes: `SLACK` passes of two minutes, the time that a head waits for its stages."""
LONGEST_S: Final = 2 * LONE_S  # Maximum between two commits, whatever was measured.
SLOW_AFTER_S: Final = 10.0  # The first commits share the machine with the prefill and do not count.
UNKNOWN_TOKEN_S: Final = 0.05  # Prefill time per token without a measurement: that of passes of one token.
LEAST_TOKEN_S: Final = UNKNOWN_TOKEN_S / SLACK
"""Minimum of measured times per token: prompts may have been cached in part."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """A verifier's pace in one session: `prompt_tokens` to prefill, and its `usual` speeds."""

    since_s: float
    prompt_tokens: int = 1
    usual: UsualSpeeds = field(default_factory=UsualSpeeds)
    announced_pass_s: float = 0.0
    commits: int = 0
    first_commit_s: float = 0.0
    waited_s: float = 0.0
    _report: tuple[int, int] = (0, 0)
    _reported_at_s: float = 0.0

    def note_commit(self, now_s: float) -> None:
        if self.commits:
            self.waited_s += now_s - self.since_s
        else:
            self.first_commit_s = now_s - self.since_s
        self.commits += 1
        self.since_s = now_s

    def pass_s(self, now_s: float) -> float | None:
        """Return the mean seconds of commits after the first, with the present wait if longer; None before any."""
        gaps, waited_s = self.commits - 1, self.waited_s
        if self.commits and (now_s - self.since_s) * max(1, gaps) > waited_s:
            gaps, waited_s = gaps + 1, waited_s + now_s - self.since_s
        return waited_s / gaps if gaps > 0 else None

    def why_leave(self, now_s: float, *, report: tuple[int, int], is_lone: bool) -> str:
        """Return the reason to leave the verifier now, else "". `report` is its reported progress."""
        if report != self._report:
            self._report, self._reported_at_s = report, now_s
        silence_s = now_s - max(self.since_s, self._reported_at_s)
        if silence_s > self._limit_s(is_counting=False, is_lone=is_lone):
            return f"it made no progress for {silence_s:.0f} s"
        wait_s = now_s - self.since_s
        if wait_s > self._limit_s(is_counting=True, is_lone=is_lone):
            return f"it committed nothing for {wait_s:.0f} s"
        # Beyond twice the slack another verifier is tried, but never at less than a second a commit. The default
        # pass time is three times that of the slowest emulated machine.
        slow_s, pass_s = max(1.0, 2 * SLACK * (self.usual.pass_s or 0.2)), self.pass_s(now_s)
        if not is_lone and self.waited_s + wait_s > SLOW_AFTER_S and pass_s is not None and pass_s > slow_s:
            return f"it took {pass_s:.1f} s for a commit"
        return ""

    def _limit_s(self, *, is_counting: bool, is_lone: bool) -> float:
        if self.commits:
            usual_s = SLACK * (self.usual.pass_s or 0.0)
            if self.commits > 1:
                own_s = SLACK * self.waited_s / (self.commits - 1)
            else:
                # The time to the first commit contains a pass.
                own_s = 0.0 if self.usual.pass_s else min(SLOW_AFTER_S, SLACK * self.first_commit_s)
            limit_s, longest_s = min(LONGEST_S, max(STALL_S, usual_s, own_s)), LONGEST_S
        else:
            known_s = self.usual.prefill_token_s
            token_s = UNKNOWN_TOKEN_S if known_s is None else max(LEAST_TOKEN_S, SLACK * known_s)
            limit_s = max(STALL_S, token_s * self.prompt_tokens)
            longest_s = max(LONGEST_S, limit_s)
        if is_lone:
            passes = SLACK if self.commits else max(SLACK, self.prompt_tokens)
            announced_s = min(ANNOUNCED_S, passes * self.announced_pass_s)
            limit_s = max(limit_s, announced_s, LONE_S if is_counting else 0.0)
            longest_s = max(longest_s, announced_s)
        return min(COUNTING * limit_s, longest_s) if is_counting else limit_s
