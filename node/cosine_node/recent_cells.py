"""Cells of the DHT as light clients ask for them: each looked up once for all who ask within a short time."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

ReadCell = Callable[[str], Awaitable[Sequence[bytes]]]

REUSE_S: Final = 2.0
"""A choice, as clients do: a record lives for minutes, and a look-up asks thirty nodes."""
MAX_CELLS: Final = 256
"""Bounds memory: 64 MiB of full cells of the largest records."""


@dataclass(frozen=True, slots=True)
class _Read:
    records: "asyncio.Task[Sequence[bytes]]"
    began_s: float


class RecentCells:
    """A `ReadCell` over another, whose answers it gives again for `REUSE_S`. `clock` gives seconds."""

    def __init__(self, read: ReadCell, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._reads: OrderedDict[str, _Read] = OrderedDict()

    async def __call__(self, cell: str) -> Sequence[bytes]:
        """The signed records in a cell. Raises what reading raises."""
        now_s = self._clock()
        known = self._reads.get(cell)
        if known is None or now_s - known.began_s > REUSE_S or _has_failed(known.records):
            known = self._reads[cell] = _Read(asyncio.ensure_future(self._read(cell)), now_s)
            self._reads.move_to_end(cell)
            if len(self._reads) > MAX_CELLS:
                self._reads.popitem(last=False)
        # Whoever asked first may give up; others wait for the same answer.
        return await asyncio.shield(known.records)


def _has_failed(read: "asyncio.Task[Sequence[bytes]]") -> bool:
    return read.done() and (read.cancelled() or read.exception() is not None)
