"""The depth to which drafting ahead pays, if at all, from measured delays and the acceptance rate.

The verifier never waits, so a request alternates between runs in which drafts are accepted and passes that find
none. After a miss the news travels to the drafter and a draft back, R = RTT(verifier) + RTT(drafter), during which
m = (R + t) / T passes commit one token each (T a pass, t a drafted token). Then n = a / (1 - a) tokens are accepted
in a row at acceptance rate a, of which a pass takes at most T / t. Tokens per pass:

    (m + n + 1) / (m + max(1, (n + 1) t / T))

It is at least 1: this is what running ahead gains over rounds, whose R is paid in every one of them.
"""

import math
from dataclasses import dataclass
from typing import Final

MIN_GAIN: Final = 1.02
"""A choice: less is within the error of what was measured, and drafters have better to do."""
MIN_DEPTH_TOKENS: Final = 8
"""A choice: the model is an estimate, and a few tokens more cost a drafter little."""
MAX_DEPTH_TOKENS: Final = 48
"""Below the depth of a live tree (`MAX_TREE_DEPTH`), so that commits under way leave room."""
LEAST_PATH_PROBABILITY: Final = 0.02
"""A choice: drafts end where a path is less likely than this."""
WIDTH_NODES: Final = 8
"""A choice: nodes that a drafter expands in one of its passes."""
BUSY_WIDTH_NODES: Final = 4
"""A choice: the same where the verifier has less room for drafts."""
BUSY_FACTOR: Final = 1.3
"""A choice: a verifier is busy once its passes take so many times as long as alone."""
MAX_ACCEPTANCE: Final = 0.98
"""Keeps the expected run of accepted tokens finite: 49 tokens."""
MIN_TOKEN_S: Final = 1e-4
"""Keeps ratios finite where a drafter announces no time at all."""
MIN_PASS_S: Final = 1e-3
"""Keeps ratios finite where a verifier announces no time at all."""
WINDOW_PER_DEPTH: Final = 16
"""A choice: undecided nodes that a drafter may have for each token of depth, twice its width."""
CLOSE_DEPTH: Final = 0.34
"""A choice: depths that differ by less than a third are close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Measurements in seconds: a pass of the verifier alone and lately, a drafted token, both round trips."""

    plain_pass_s: float
    pass_s: float
    token_s: float
    verifier_rtt_s: float
    drafter_rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """The way to draft. `gain` is expected committed tokens per pass; at `depth_tokens` 0 nothing is gained."""

    depth_tokens: int
    width_nodes: int
    window_nodes: int
    gain: float
    why: str


def expected_gain(latencies: Latencies, *, acceptance: float) -> float:
    """Committed tokens per pass of running ahead with one drafter."""
    pass_s = max(MIN_PASS_S, latencies.pass_s)
    token_s = max(MIN_TOKEN_S, latencies.token_s)
    acceptance = min(max(acceptance, 0.0), MAX_ACCEPTANCE)
    missed = (latencies.verifier_rtt_s + latencies.drafter_rtt_s + token_s) / pass_s
    run = acceptance / (1.0 - acceptance)
    return (missed + run + 1.0) / (missed + max(1.0, (run + 1.0) * token_s / pass_s))


def plan_drafts(latencies: Latencies, *, acceptance: float) -> DraftPlan:
    """The plan for the leading drafter, given how often a committed token was among those drafted."""
    gain = expected_gain(latencies, acceptance=acceptance)
    loop_s = latencies.verifier_rtt_s + latencies.drafter_rtt_s
    loop = f"{1e3 * loop_s:.0f} ms to a drafter and back"
    seen = f"acceptance {acceptance:.2f}, {loop}, {1e3 * latencies.pass_s:.0f} ms a pass"
    if gain < MIN_GAIN:
        return DraftPlan(
            depth_tokens=0,
            width_nodes=0,
            window_nodes=0,
            gain=gain,
            why=f"not worth it: {gain:.2f}x expected from {seen}",
        )
    passes = 1.0 + loop_s / max(MIN_PASS_S, latencies.pass_s)
    likely = math.log(LEAST_PATH_PROBABILITY) / math.log(min(max(acceptance, 0.01), MAX_ACCEPTANCE))
    depth = round(min(max(gain * passes + likely, MIN_DEPTH_TOKENS), MAX_DEPTH_TOKENS))
    is_busy = latencies.pass_s > BUSY_FACTOR * latencies.plain_pass_s
    width = BUSY_WIDTH_NODES if is_busy else WIDTH_NODES
    return DraftPlan(
        depth_tokens=depth,
        width_nodes=width,
        window_nodes=WINDOW_PER_DEPTH * depth,
        gain=gain,
        why=f"{depth} tokens deep, {width} nodes a pass: {gain:.2f}x expected from {seen}",
    )


def is_close(plan: DraftPlan, other: DraftPlan) -> bool:
    """Return whether the difference is too small to tell a drafter about it."""
    is_same_width = plan.width_nodes == other.width_nodes
    return is_same_width and abs(plan.depth_tokens - other.depth_tokens) <= other.depth_tokens * CLOSE_DEPTH
