"""The drafters that may draft for one request, their author numbers, and what became of their drafts."""

from collections import Counter
from collections.abc import Iterable, Sequence

from cosine_p2p.generation import DrafterReport
from cosine_p2p.job import KnownDrafter
from cosine_protocol.limits import MAX_NEW_TOKENS
from cosine_protocol.nodes import BASE, NodeBlock


class DrafterLedger:
    """Drafters of a request in the order of their author numbers, which start at 1.

    `offered` counts committed tokens for whose position some drafter had sent a node.
    """

    def __init__(self, records: Sequence[KnownDrafter]) -> None:
        self._records = tuple(records)
        self._numbers = {record.peer_id: number for number, record in enumerate(self._records, 1)}
        self._drafted: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._rtt_s: dict[int, float] = {}
        self._position = 0
        self._offered_positions: set[int] = set()
        self.offered = 0

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(record.peer_id for record in self._records)

    @property
    def authors(self) -> range:
        return range(1, len(self._records) + 1)

    @property
    def drafted(self) -> int:
        """Nodes received from all drafters."""
        return self._drafted.total()

    def author_of(self, peer_id: str) -> int:
        """The author number of a peer, 0 if it has none."""
        return self._numbers.get(peer_id, 0)

    def domain_of(self, author: int) -> str:
        """The domains a drafter announces, or its model where it announces none."""
        record = self._records[author - 1]
        return ",".join(record.expertise) or record.model

    def expertise_of(self, author: int) -> tuple[str, ...]:
        """The domains that a drafter announces."""
        return self._records[author - 1].expertise

    def accepted(self, author: int) -> int:
        """Committed tokens of a drafter."""
        return self._accepted[author]

    def note_drafted(self, author: int, nodes: NodeBlock, position: int) -> None:
        """Count nodes that extend an output of `position` tokens."""
        self._drafted[author] += len(nodes)
        self.note_offered(nodes, position)

    def note_offered(self, nodes: NodeBlock, position: int) -> None:
        """Note for which positions there are nodes that extend an output of `position` tokens."""
        depths: list[int] = []
        for node in nodes:
            depths.append(depths[node.parent] + 1 if node.parent != BASE else 0)
        deepest = max(depths, default=-1)
        self._offered_positions.update(range(position, min(position + deepest + 1, MAX_NEW_TOKENS)))

    def note_rtt(self, author: int, rtt_s: float) -> None:
        self._rtt_s[author] = rtt_s

    def note_told(self, author: int, nodes: int, rtt_s: float) -> None:
        """Take a delegate's word for how many nodes a drafter has sent in all, and how far from it that one is."""
        self._drafted[author] = max(self._drafted[author], nodes)
        self.note_rtt(author, rtt_s)

    def told(self, author: int) -> tuple[int, float]:
        """Nodes received from a drafter so far and its round-trip time in seconds, 0 if unknown."""
        return self._drafted[author], self._rtt_s.get(author, 0.0)

    def credit(self, authors: Iterable[int]) -> None:
        """Count committed tokens, those that follow the last ones, for the drafters among their authors."""
        for author in authors:
            self.offered += self._position in self._offered_positions
            self._offered_positions.discard(self._position)
            self._position += 1
            if author in self.authors:
                self._accepted[author] += 1

    def reports(self) -> tuple[DrafterReport, ...]:
        """One report for every drafter that sent anything."""
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
