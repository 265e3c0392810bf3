"""Which pieces of tensors are still to be fetched, and who fetches which now. Pure."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.manifest import ManifestTensor

MOST_FETCHING: Final = 2
"""Of sources for one piece: at the end those without work fetch what slow ones have not brought yet."""


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Pieces that follow each other in one tensor, by its row in the manifest."""

    row: int
    first: int
    count: int

    @property
    def pieces(self) -> range:
        return range(self.first, self.first + self.count)

    def size_bytes(self, tensor: ManifestTensor) -> int:
        return sum(map(tensor.piece_bytes, self.pieces))


@dataclass(slots=True)
class _UnderWay:
    run: Run
    sources: set[str] = field(default_factory=set)


class PieceBoard:
    """Gives out pieces in order, and again what was given back. A run is of one source at first.

    Where nothing is left to give out, what is under way longest is given to a second source, too.
    """

    def __init__(self, lacking: Iterable[tuple[int, int]]) -> None:
        """With the pieces that lack, as rows and numbers."""
        self._lacking: dict[int, deque[int]] = {}
        for row, piece in sorted(lacking):
            self._lacking.setdefault(row, deque()).append(piece)
        self._under_way: dict[tuple[int, int], _UnderWay] = {}
        self._left = sum(map(len, self._lacking.values()))

    @property
    def is_done(self) -> bool:
        """True once all pieces are there."""
        return self._left == 0

    @property
    def lacking_rows(self) -> frozenset[int]:
        """The tensors of which pieces lack or are under way."""
        return frozenset(self._lacking) | {row for row, _ in self._under_way}

    def take(self, source: str, *, holds: Callable[[int], bool], most: int = 1) -> Run | None:
        """The next pieces for a source that holds some tensors; None where there are none for it."""
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
            run = Run(row, first, count)
            for piece in run.pieces:
                self._under_way[row, piece] = _UnderWay(Run(row, piece, 1), {source})
            return run
        for flying in self._under_way.values():
            if holds(flying.run.row) and source not in flying.sources and len(flying.sources) < MOST_FETCHING:
                flying.sources.add(source)
                return flying.run
        return None

    def lacks(self, row: int, piece: int) -> bool:
        """True for a piece that is not there yet, though somebody may fetch it."""
        return (row, piece) in self._under_way or piece in self._lacking.get(row, ())

    def note_done(self, row: int, piece: int) -> bool:
        """A piece is there; False where it was before."""
        if self._under_way.pop((row, piece), None) is None:
            return False
        self._left -= 1
        return True

    def give_back(self, run: Run, source: str) -> None:
        """A source does not bring these; what nobody else fetches comes first."""
        for piece in reversed(run.pieces):
            flying = self._under_way.get((run.row, piece))
            if flying is None:
                continue
            flying.sources.discard(source)
            if not flying.sources:
                del self._under_way[run.row, piece]
                self._lacking.setdefault(run.row, deque()).appendleft(piece)
