"""The counts of one session: tokens, passes, decisions, and the part of each drafter. Pure."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cosine_p2p.request.results import DrafterReport
from cosine_p2p.session.job import KnownDrafter
from cosine_protocol.errors import PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.stream import MAX_AUTHORS
from cosine_protocol.verify import HOME_AUTHOR, PassStats

MAX_WHY: Final = 64  # Bounds memory: the first decisions of a session.
LATEST_WHY: Final = 16  # Bounds memory: the latest decisions, for a display of progress.
LATEST_PASSES: Final = 64  # Four seconds of passes of 60 ms.

PeerFailure = PeerError | PeerLost | RemoteProtocolError  # A failure that ends a verifier's part in a request.


class ReportedPasses:
    """The latest times of passes after the prompt's, with and without draft nodes."""

    def __init__(self) -> None:
        self._plain_us: deque[int] = deque(maxlen=LATEST_PASSES)
        self._drafted_us: deque[int] = deque(maxlen=LATEST_PASSES)

    def note(self, stats: PassStats, *, is_first: bool) -> None:
        """Note a pass; the first pass of a verifier also reads the prompt and is ignored."""
        if not is_first and stats.pass_us:
            (self._drafted_us if stats.nodes else self._plain_us).append(stats.pass_us)

    @property
    def plain_s(self) -> float | None:
        """Median seconds of passes without draft nodes, else the minimum of all; None before any."""
        if self._plain_us:
            return median(self._plain_us) / 1e6
        return min(self._drafted_us) / 1e6 if self._drafted_us else None

    @property
    def has_plain(self) -> bool:
        """True if `plain_s` was measured, otherwise it is an upper bound."""
        return bool(self._plain_us)


@dataclass(slots=True)
class SessionCounts:
    """Counts of one session, with failed verifiers and decisions about drafters as text."""

    rounds: int = 0
    near_ties: int = 0
    accepted: int = 0
    home_tokens: int = 0
    cached_tokens: int = 0
    passes: ReportedPasses = field(default_factory=ReportedPasses)
    tokens_by_verifier: dict[str, int] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    latest_why: deque[str] = field(default_factory=lambda: deque(maxlen=LATEST_WHY))
    decisions: int = 0

    def note_line(self, line: str) -> None:
        self.decisions += 1
        self.latest_why.append(line)
        if len(self.why) < MAX_WHY:
            self.why.append(line)

    def note_commit(self, peer_id: str, authors: bytes, stats: PassStats) -> None:
        if not self.rounds:
            self.cached_tokens = stats.cached_tokens or 0
        self.rounds += 1
        self.near_ties += stats.near_ties
        self.home_tokens += authors.count(HOME_AUTHOR)
        self.accepted += sum(0 < author <= MAX_AUTHORS for author in authors)
        self.tokens_by_verifier[peer_id] = self.tokens_by_verifier.get(peer_id, 0) + len(authors)

    def note_tried(self, peer_id: str, error: PeerFailure) -> None:
        match error:
            case PeerError():
                self.tried.append(f"{peer_id} refused: {error.message}")
            case PeerLost():
                self.tried.append(f"{peer_id} was lost: {error.reason}")
            case _:
                self.tried.append(f"{peer_id} broke the protocol: {error}")


class DrafterLedger:
    """Counts of a request's drafters by author number, from 1."""

    def __init__(self, records: Sequence[KnownDrafter]) -> None:
        self._records = tuple(records)
        self._numbers = {record.peer_id: number for number, record in enumerate(self._records, 1)}
        self._drafted: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._rtt_s: dict[int, float] = {}

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(record.peer_id for record in self._records)

    @property
    def authors(self) -> range:
        return range(1, len(self._records) + 1)

    @property
    def drafted(self) -> int:
        return self._drafted.total()

    def author_of(self, peer_id: str) -> int:
        """The author number of a peer, 0 for none."""
        return self._numbers.get(peer_id, 0)

    def domain_of(self, author: int) -> str:
        """Return the domains that a drafter announces, else its model."""
        record = self._records[author - 1]
        return ",".join(record.expertise) or record.model

    def accepted(self, author: int) -> int:
        return self._accepted[author]

    def note_drafted(self, author: int, nodes: int) -> None:
        self._drafted[author] += nodes

    def note_rtt(self, author: int, rtt_s: float) -> None:
        self._rtt_s[author] = rtt_s

    def note_told(self, author: int, nodes: int, rtt_s: float) -> None:
        """Note a delegate's report of a drafter's nodes and distance."""
        self._drafted[author] = max(self._drafted[author], nodes)
        self.note_rtt(author, rtt_s)

    def told(self, author: int) -> tuple[int, float]:
        """Return the number of nodes from a drafter and its round-trip time in seconds, 0 if unknown."""
        return self._drafted[author], self._rtt_s.get(author, 0.0)

    def credit(self, authors: Iterable[int]) -> None:
        """Count committed tokens for their authors."""
        self._accepted.update(author for author in authors if author in self.authors)

    def reports(self) -> tuple[DrafterReport, ...]:
        return tuple(
            DrafterReport(
                record.peer_id,
                self.domain_of(author),
                self._drafted[author],
                self._accepted[author],
                round(1e3 * self._rtt_s.get(author, 0.0), 2),
            )
            for author, record in enumerate(self._records, 1)
            if self._drafted[author]
        )
