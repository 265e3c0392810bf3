"""A look-up along disjoint paths (Baumgart and Mies 2007, "S/Kademlia", 4.4): a liar affects only one. Pure."""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from typing import Final

PATHS: Final = 3  # A look-up asks about three times as many nodes as with one path (decision 31).
WIDTH: Final = 20  # Kademlia's k: a path ends when its k nodes nearest to the key have answered.


class DisjointPaths:
    """A look-up of `key`. Node ids are integers; their distance is the XOR.

    `starts` are known nodes, distributed to the paths by distance; `anchors`, peers that the user named, are asked
    first; `excluded` nodes never. Ask the nodes of `next_node` until it returns None for every path while no
    request is open; report each result with `note_answer` or `note_silence`.
    """

    def __init__(
        self,
        key: int,
        *,
        starts: Iterable[int],
        anchors: Sequence[int] = (),
        excluded: Collection[int] = (),
        paths: int = PATHS,
        width: int = WIDTH,
    ) -> None:
        self.answered: dict[int, int] = {}
        """The path of each node that has answered."""
        self._key = key
        self._width = width
        self._asked: dict[int, int | None] = dict.fromkeys(excluded)
        self._silent: set[int] = set()
        near = sorted(set(starts), key=lambda node: node ^ key)
        # Sorted distances; the id is the distance XOR the key.
        self._heard = [[node ^ key for node in near[path::paths]] for path in range(paths)]
        self._anchors = [list(anchors[path::paths]) for path in range(paths)]

    @property
    def paths(self) -> range:
        return range(len(self._heard))

    def next_node(self, path: int) -> int | None:
        """The node to ask next on a path; None if there is none now."""
        while self._anchors[path]:
            anchor = self._anchors[path].pop()
            if anchor not in self._asked:
                return self._take(anchor, path)
        room = self._width
        for distance in self._heard[path]:
            node = distance ^ self._key
            if node not in self._asked:
                return self._take(node, path)
            room -= self._asked[node] == path and node not in self._silent
            if not room:
                return None
        return None

    def note_answer(self, node: int, told: Iterable[int]) -> None:
        path = self._asked[node]
        assert path is not None
        self.answered[node] = path
        known = set(self._heard[path])
        new = {neighbour ^ self._key for neighbour in told if neighbour not in self._asked} - known
        # The neighbours of the first node also start paths that have no node yet.
        begun = set(self._asked.values())
        takers = [path, *(other for other in self.paths if not self._heard[other] and other not in begun)]
        for place, distance in enumerate(sorted(new)):
            insort(self._heard[takers[place % len(takers)]], distance)

    def note_silence(self, node: int) -> None:
        self._silent.add(node)

    def nearest(self, path: int) -> list[int]:
        mine = [node for node, its_path in self.answered.items() if its_path == path]
        return sorted(mine, key=lambda node: node ^ self._key)

    def _take(self, node: int, path: int) -> int:
        self._asked[node] = path
        return node
