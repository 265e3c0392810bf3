"""Counters of services."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.draft import ReleaseReason
from cosine_protocol.errors import ErrorCode

# Bounds of the histograms: from a small model on a GPU to a large one on a CPU, and up to 64 concurrent requests.
PASS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PASS_ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """Counts of values up to each bound and above the previous one; the last count has the rest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class PassCounts:
    """Counters of all nodes with a model: opened requests or chains, and passes."""

    opened: int = 0
    pass_s: Histogram = field(default_factory=lambda: Histogram(PASS_S))
    pass_rows: Histogram = field(default_factory=lambda: Histogram(PASS_ROWS))

    def note_pass(self, *, seconds: float, rows: int) -> None:
        self.pass_s.add(seconds)
        self.pass_rows.add(rows)


@dataclass(slots=True)
class Counts(PassCounts):
    """Counters of verifiers and drafters. `streams` are the open ones; `ended` are served requests by reason."""

    streams: int = 0
    refused: Counter[ErrorCode] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    passes_failed: int = 0


@dataclass(slots=True)
class VerifierCounts(Counts):
    """Counters of a verifier. Nodes are those of remote drafters, except committed `home_nodes` of its own."""

    passes_abandoned: int = 0
    preempted: int = 0
    committed_tokens: int = 0
    received_nodes: int = 0
    verified_nodes: int = 0
    accepted_nodes: int = 0
    home_nodes: int = 0
    audited_tokens: int = 0


@dataclass(slots=True)
class DrafterCounts(Counts):
    """Counters of a drafter.

    dropped_fragments: Not sent, because a client read too slowly.
    drafted_requests: Requests that nodes were sent for.
    text_tokens, accepted_tokens: Tokens of these requests, and those that the drafter contributed, by their
    clients.
    offered_positions, taken_tokens: Committed tokens after nodes for them were sent, and those among these nodes.
    first_choices, right_first_choices: Committed tokens with a previous first choice of the model, and right
    choices.
    let_go: Releases by reason.
    """

    busy: int = 0
    prompt_tokens: int = 0
    sent_nodes: int = 0
    sent_fragments: int = 0
    dropped_fragments: int = 0
    drafted_requests: int = 0
    text_tokens: int = 0
    offered_positions: int = 0
    taken_tokens: int = 0
    first_choices: int = 0
    right_first_choices: int = 0
    accepted_tokens: int = 0
    let_go: Counter[ReleaseReason] = field(default_factory=Counter)


@dataclass(slots=True)
class StageCounts(PassCounts):
    """Counters of a stage, with the tokens of its passes."""

    fed_tokens: int = 0
