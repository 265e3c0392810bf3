"""The pieces of tensors to fetch, and the sources that fetch them. Pure."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

MOST_FETCHING: Final = 2
"""Maximum number of sources of one piece: idle ones also fetch the pieces of slow ones."""


@dataclass(frozen=True, slots=True, order=True)
class PieceRun:
    """Consecutive pieces of a tensor, which is a row of the manifest."""

    row: int
    first: int
    count: int

    @property
    def pieces(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(slots=True)
class _UnderWay:
    run: PieceRun
    sources: set[str] = field(default_factory=set)


class PieceBoard:
    """Assigns pieces to sources in order.

    Once all are assigned, the oldest unfinished ones are assigned to a second source.
    """

    def __init__(self, lacking: Iterable[tuple[int, int]]) -> None:
        """`lacking` are rows and numbers of missing pieces."""
        self._lacking: dict[int, deque[int]] = {}
        for row, piece in sorted(lacking):
            self._lacking.setdefault(row, deque()).append(piece)
        self._under_way: dict[tuple[int, int], _UnderWay] = {}
        self._left = sum(map(len, self._lacking.values()))

    @property
    def is_done(self) -> bool:
        return self._left == 0

    @property
    def lacking_rows(self) -> frozenset[int]:
        return frozenset(self._lacking) | {row for row, _ in self._under_way}

    def take(self, source: str, *, holds: Callable[[int], bool], most: int = 1) -> PieceRun | None:
        """The next pieces for a source. None if it holds none of the missing ones."""
        for row, pieces in self._lacking.items():
            if not holds(row):
                continue
            first = pieces.popleft()
            count = 1
            while count < most and pieces and pieces[0] == first + count:
                pieces.popleft()
                count += 1
            if not pieces:
                del self._lacking[row]
            run = PieceRun(row, first, count)
            for piece in run.pieces:
                self._under_way[row, piece] = _UnderWay(PieceRun(row, piece, 1), {source})
            return run
        for flying in self._under_way.values():
            if holds(flying.run.row) and source not in flying.sources and len(flying.sources) < MOST_FETCHING:
                flying.sources.add(source)
                return flying.run
        return None

    def lacks(self, row: int, piece: int) -> bool:
        """True for a missing piece, even if a source fetches it."""
        return (row, piece) in self._under_way or piece in self._lacking.get(row, ())

    def note_done(self, row: int, piece: int) -> bool:
        """Note that a piece has arrived. Returns False if it had before."""
        if self._under_way.pop((row, piece), None) is None:
            return False
        self._left -= 1
        return True

    def give_back(self, run: PieceRun, source: str) -> None:
        """Note that a source does not fetch these. Pieces without another source come first."""
        for piece in reversed(run.pieces):
            flying = self._under_way.get((run.row, piece))
            if flying is None:
                continue
            flying.sources.discard(source)
            if not flying.sources:
                del self._under_way[run.row, piece]
                self._lacking.setdefault(run.row, deque()).appendleft(piece)
