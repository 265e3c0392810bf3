"""Counts that services keep of their work, as plain numbers."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.errors import ErrorCode
from cosine_protocol.messages import ReleaseReason

# Bounds of the histograms of passes: from a small model on a GPU to a large one on a processor, and as many rows as
# an engine of many requests takes at once.
PASS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PASS_ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """Counts of values at or below each bound and above the one before; the last count is of the rest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class PassCounts:
    """Counts of all nodes with a model since they began: requests or chains that were opened, and passes."""

    opened: int = 0
    pass_s: Histogram = field(default_factory=lambda: Histogram(PASS_S))
    pass_rows: Histogram = field(default_factory=lambda: Histogram(PASS_ROWS))

    def note_pass(self, *, seconds: float, rows: int) -> None:
        """Count a pass that was finished."""
        self.pass_s.add(seconds)
        self.pass_rows.add(rows)


@dataclass(slots=True)
class Counts(PassCounts):
    """Counts that verifiers and drafters share, since they began, but for the `streams` that are open now.

    `ended` are requests that were served, by how that ended; `refused` are those that never were.
    """

    streams: int = 0
    refused: Counter[ErrorCode] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    passes_failed: int = 0


@dataclass(slots=True)
class VerifierCounts(Counts):
    """Counts of a verifier.

    Nodes are those of drafters: received, fed in a pass, and committed; `home_nodes` are committed ones of the
    verifier's own drafter. Tokens of other verifiers are audited.
    """

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
    """Counts of a drafter.

    `busy` are answers that there is no room; fragments are dropped where a client reads too slowly. Nodes were sent
    to `drafted_requests`; of the tokens committed meanwhile `offered_positions` came after nodes for them had been
    sent, and `taken_tokens` of these were among the nodes. Clients have told that of the `text_tokens` of such
    requests `accepted_tokens` were its, and have let it go for reasons. Of all tokens that were committed while it
    followed, it had a first choice before `first_choices`, of which `right_first_choices` were right.
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
    """Counts of a stage: beside those of all the tokens of its passes, and feeds that nobody wanted any more."""

    skipped_feeds: int = 0
    fed_tokens: int = 0
