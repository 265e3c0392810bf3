"""How far ahead to draft, and whether at all, from measured delays and acceptance.

The verifier never waits, so a request alternates between runs in which drafts hold and passes that find none.
After a miss the news travels to the drafter and a draft back, R = RTT(verifier) + RTT(drafter), during which
m = (R + t) / T passes commit one token each (T a pass, t a drafted token). Then the drafts hold for n = a / (1 - a)
tokens at acceptance a, of which a pass takes at most T / t. Tokens per pass:

    (m + n + 1) / (m + max(1, (n + 1) t / T))

It is at least 1: this is what running ahead gains over rounds, whose R is paid in every one of them.
"""

import math
from dataclasses import dataclass
from typing import Final

MIN_GAIN: Final = 1.02
MIN_DEPTH_TOKENS: Final = 8
MAX_DEPTH_TOKENS: Final = 48
LEAST_REACH: Final = 0.02
WIDTH_NODES: Final = 8
BUSY_WIDTH_NODES: Final = 4
BUSY_FACTOR: Final = 1.3
MAX_ACCEPTANCE: Final = 0.98
MIN_TOKEN_S: Final = 1e-4
MIN_PASS_S: Final = 1e-3
WINDOW_PER_DEPTH: Final = 16
CLOSE_SHARE: Final = 0.34


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What was measured, in seconds: a pass of the verifier alone and lately, a drafted token, both round trips."""

    plain_pass_s: float
    pass_s: float
    token_s: float
    verifier_rtt_s: float
    drafter_rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """How to draft. `gain` is expected committed tokens per pass; `depth_tokens` 0 means that nothing is gained."""

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
    likely = math.log(LEAST_REACH) / math.log(min(max(acceptance, 0.01), MAX_ACCEPTANCE))
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
    """Whether telling a drafter of the difference is not worth a message."""
    is_same_width = plan.width_nodes == other.width_nodes
    return is_same_width and abs(plan.depth_tokens - other.depth_tokens) <= other.depth_tokens * CLOSE_SHARE
