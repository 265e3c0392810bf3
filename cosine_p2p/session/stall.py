"""The time that a verifier may take: bounded by what was measured here, not by what it says of itself. Pure.

Only commits are progress. A verifier that reports passes without committing may be serving others, and gets
`COUNTING` times as long as one that reports nothing. Where nobody else is left to ask, patience costs nothing but
time, so there the announced pass is believed too, up to `LONE_S`.
"""

from dataclasses import dataclass, field
from typing import Final

from cosine_p2p.trust.peer_memory import UsualSpeeds

STALL_S: Final = 3.5
"""A choice: a verifier that commits nothing for so long stalls, unless what was measured says otherwise. With the
time until that is noticed, and another has gone on, a user waits 4 s."""
SLACK: Final = 5
"""A choice: a verifier may take so many times what it or others took before."""
COUNTING: Final = 5
"""A choice: one that reports passes gets so many times as long, since it may serve others."""
LONGEST_S: Final = 120.0
"""A choice: between two commits a verifier never gets more, whatever its passes took before."""
LONE_S: Final = 60.0
"""A choice: so long a sole verifier that works, or announces long passes, may take at least."""
SLOW_AFTER_S: Final = 10.0
"""A choice: a verifier is not called slow by its first commits, which share the machine with its prefill."""
UNKNOWN_TOKEN_S: Final = 0.05
"""A choice: the prefill of a token where none was measured, 20 tokens a second; passes of one token are as slow."""
LEAST_TOKEN_S: Final = 0.01
"""A choice: prompts of which a part was cached say little about those that come."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """A verifier's pace in one session: since when it owes us a commit, and what its commits took.

    `prompt_tokens` are those it must prefill, `usual` is what was measured before this session.
    """

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
        """The verifier has committed, and owes the next commit from now on."""
        if self.commits:
            self.waited_s += now_s - self.since_s
        else:
            self.first_commit_s = now_s - self.since_s
        self.commits += 1
        self.since_s = now_s

    def pass_s(self, now_s: float) -> float | None:
        """The mean time for a commit after the first, the present wait too once it is longer; None before any."""
        gaps, waited_s = self.commits - 1, self.waited_s
        if self.commits and (now_s - self.since_s) * max(1, gaps) > waited_s:
            gaps, waited_s = gaps + 1, waited_s + now_s - self.since_s
        return waited_s / gaps if gaps > 0 else None

    def why_leave(self, now_s: float, *, report: tuple[int, int], is_lone: bool) -> str:
        """The reason to leave the verifier now, if there is one, else "". `report` is what it says to have done."""
        if report != self._report:
            self._report, self._reported_at_s = report, now_s
        silence_s = now_s - max(self.since_s, self._reported_at_s)
        if silence_s > self._limit_s(is_counting=False, is_lone=is_lone):
            return f"it made no progress for {silence_s:.0f} s"
        wait_s = now_s - self.since_s
        if wait_s > self._limit_s(is_counting=True, is_lone=is_lone):
            return f"it committed nothing for {wait_s:.0f} s"
        # Choices: one ten times slower than usual is left for one not asked yet, but never one that needs less than
        # a second. The pass where none was measured is three times that of the slowest machine emulated here.
        slow_s, pass_s = max(1.0, 10 * (self.usual.pass_s or 0.2)), self.pass_s(now_s)
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
            limit_s = max(limit_s, LONE_S if is_counting else min(LONE_S, passes * self.announced_pass_s))
        return min(COUNTING * limit_s, longest_s) if is_counting else limit_s
