"""The time that a verifier may take: bounded by what was measured here, not by what it says. Pure.

Only commits are progress. A verifier that reports passes without committing may serve others, and gets `COUNTING`
times as long. Where nobody else is left to ask, the announced pass is believed too, up to `ANNOUNCED_S`.
"""

from dataclasses import dataclass, field
from typing import Final

from cosine_p2p.transport.channel import SILENCE_S
from cosine_p2p.transport.patience import JOIN_PATIENCE_S
from cosine_p2p.trust.peer_memory import UsualSpeeds

# One that stands still costs its user no more than one whose connection died: `SILENCE_S`. What may explain a slow
# one allows it `SLACK` times as much: prompts of others that are fed beside, requests that came since it was
# measured. Half of that would leave honest verifiers whenever they are busy, each for a prefill elsewhere; twice
# would let one that only counts hold a text for 35 s. With these a liar costs 4 to 20 s, once (docs/security.md).
CHECK_EVERY_S: Final = 0.5  # How late a verifier that makes no progress may be noticed.
STALL_S: Final = SILENCE_S - CHECK_EVERY_S  # Who commits nothing for so long stalls, unless measured otherwise.
SLACK: Final = 5  # A verifier may take so many times what it or others took before.
COUNTING: Final = SLACK  # One that reports passes gets so many times as long again, since it may serve others.
LONE_S: Final = JOIN_PATIENCE_S  # A sole verifier that works gets at least as long as a lost one.
ANNOUNCED_S: Final = 600.0
"""The longest silence that an announced pass explains: `SLACK` passes of two minutes, as long as a head waits for
its stages."""
LONGEST_S: Final = 2 * LONE_S  # Between two commits a verifier never gets more, whatever its passes took before.
SLOW_AFTER_S: Final = 10.0  # Not by its first commits, which share the machine with its prefill.
UNKNOWN_TOKEN_S: Final = 0.05  # A token's prefill where none was measured: as slow as passes of one token.
LEAST_TOKEN_S: Final = UNKNOWN_TOKEN_S / SLACK
"""What was measured never allows less: prompts of which a part was cached say little about those that come."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """A verifier's pace in one session: `prompt_tokens` to prefill, and what was `usual` before."""

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
        """Mean seconds of a commit after the first, counting a longer present wait; None before any."""
        gaps, waited_s = self.commits - 1, self.waited_s
        if self.commits and (now_s - self.since_s) * max(1, gaps) > waited_s:
            gaps, waited_s = gaps + 1, waited_s + now_s - self.since_s
        return waited_s / gaps if gaps > 0 else None

    def why_leave(self, now_s: float, *, report: tuple[int, int], is_lone: bool) -> str:
        """The reason to leave the verifier now, else "". `report` is the progress that it states."""
        if report != self._report:
            self._report, self._reported_at_s = report, now_s
        silence_s = now_s - max(self.since_s, self._reported_at_s)
        if silence_s > self._limit_s(is_counting=False, is_lone=is_lone):
            return f"it made no progress for {silence_s:.0f} s"
        wait_s = now_s - self.since_s
        if wait_s > self._limit_s(is_counting=True, is_lone=is_lone):
            return f"it committed nothing for {wait_s:.0f} s"
        # A pace of twice the slack is left for a verifier not asked yet, but never one of less than a second. The
        # pass where none was measured is three times that of the slowest machine emulated here.
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
                # A pass was part of the time to the first commit.
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
