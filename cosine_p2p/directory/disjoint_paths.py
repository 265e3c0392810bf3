"""A look-up by paths that share no node (Baumgart and Mies 2007, "S/Kademlia", 4.4): a liar spoils one. Pure."""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from typing import Final

PATHS: Final = 3  # A look-up asks about three times as many nodes as with one (decision 31).
WIDTH: Final = 20  # Kademlia's k: a path ends when so many nodes nearest to the key have answered on it.


class DisjointPaths:
    """One look-up of `key`. Node ids are integers, near as their XOR is small.

    `starts` are known nodes, dealt to the paths by distance; `anchors`, peers that the user named, are asked first.
    `excluded` are never asked. Ask what `next_node` gives until it gives None for every path with nothing under
    way; report each with `note_answer` or `note_silence`.
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
        # Sorted distances, from which the id follows.
        self._heard = [[node ^ key for node in near[path::paths]] for path in range(paths)]
        self._anchors = [list(anchors[path::paths]) for path in range(paths)]

    @property
    def paths(self) -> range:
        return range(len(self._heard))

    def next_node(self, path: int) -> int | None:
        """The node to ask next on a path; None while, or since, there is none."""
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
        """A node has answered and named neighbours."""
        path = self._asked[node]
        assert path is not None
        self.answered[node] = path
        known = set(self._heard[path])
        new = {neighbour ^ self._key for neighbour in told if neighbour not in self._asked} - known
        # Where one peer is known at the start, its neighbours begin the other paths.
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
