"""The order in which a reader visits the cells of one role and target; the directory reads them."""

import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from cosine_p2p.dht.postings import MAX_DEPTH, hash_prefix
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.records import NodeRecord

# Two levels below the first cell and half of the third: 17,000 nodes of one role and target.
MAX_CELLS_READ: Final = 512
ELDERS_PART: Final = 4  # Up to a quarter of the wanted nodes are taken from full cells.
ELDERS: Final = MAX_CELL_OWNERS // 4
"""The oldest owners of a cell, who are drawn first. With fewer each would be in every reader's sample."""
SIBLINGS: Final = 16  # One for each hex digit.


class CellWalk:
    """Chooses the cells to read next until all nodes are found, or `wanted` nodes near `origin`.

    A cell is named by the first hex digits of its owners' hashes. Below a full cell its sixteen children are read,
    the nearest to `origin` by XOR first (Kademlia, Maymounkov and Mazieres 2002). A region is known once its cell
    is not full. The sample consists of the nodes of known regions, and some random nodes of the full cells above,
    the oldest owners first, so that an attacker who fills cells does not hide earlier nodes.
    """

    def __init__(self, origin: str, wanted: int | None) -> None:
        self._origin = origin
        self._wanted = wanted
        self._waiting = [""]
        self._cells_left = MAX_CELLS_READ
        self._known: list[str] = []
        self._found: dict[str, NodeRecord] = {}
        # The depth of the cell and the place in it, both smaller for older owners.
        self._ages: dict[str, tuple[int, int]] = {}

    def next_prefixes(self) -> list[str]:
        """The cells to read next, together; empty at the end. `note` each before the next call."""
        width = min(self._width(), self._cells_left)
        prefixes, self._waiting = self._waiting[:width], self._waiting[width:]
        self._cells_left -= len(prefixes)
        return prefixes

    def note(self, prefix: str, records: Mapping[str, NodeRecord]) -> None:
        """Add the checked records of a cell, by owner, the oldest owner first."""
        for place, (owner, record) in enumerate(records.items()):
            self._ages.setdefault(owner, (len(prefix), place // ELDERS))
            held = self._found.get(owner)
            if held is None or record.sequence > held.sequence:
                self._found[owner] = record
        if len(records) >= MAX_CELL_OWNERS and len(prefix) < MAX_DEPTH:
            ours = int(self._origin[len(prefix)], 16)
            # Nearer than all waiting cells, except those read together with it.
            self._waiting[:0] = [f"{prefix}{ours ^ step:x}" for step in range(SIBLINGS)]
        else:
            self._known.append(prefix)

    def found(self) -> list[NodeRecord]:
        if self._wanted is None or not self._waiting:
            return list(self._found.values())
        known = tuple(self._known)
        near = [record for owner, record in self._found.items() if hash_prefix(owner).startswith(known)]
        above = [owner for owner in self._found if not hash_prefix(owner).startswith(known)]
        above.sort(key=lambda owner: (self._ages[owner], sha256(f"{self._origin} {owner}".encode()).digest()))
        return near + [self._found[owner] for owner in above[: self._wanted // ELDERS_PART]]

    def _width(self) -> int:
        """The number of cells to read together, estimated from the known regions."""
        if self._wanted is None:
            return len(self._waiting)
        known = tuple(self._known)
        nodes = sum(hash_prefix(owner).startswith(known) for owner in self._found) if known else 0
        if not nodes:
            return 1
        missing = max(0, self._wanted - nodes)
        return min(SIBLINGS, math.ceil(missing * len(self._known) / nodes))
