"""A Kademlia network in memory: hivemind's routing tables, and nodes that answer look-ups honestly or not.

Hostile nodes all answer alike: with the twenty of them that are nearest to what is looked up. They have made many
keys each and kept those whose hashes lie near the key of the cell, as a patient attacker would.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosine_p2p.directory.disjoint_paths import PATHS, WIDTH, DisjointPaths
from cosine_p2p.transport.full.library import DHTID, RoutingTable

ID_BITS = 160
BUCKET = 20
REPLICAS_EACH = 5
MET = 400
NEIGHBOURS = 40


@dataclass(frozen=True)
class Looked:
    """What a look-up met: the nodes that answered, nearest first on each path, and the messages it cost."""

    paths: tuple[tuple[int, ...], ...]
    asked: int


class Kademlia:
    """`nodes` of which a share is hostile, with ids that are the nearest to `key` of `keys_each` times as many."""

    def __init__(self, *, nodes: int, hostile_share: float, keys_each: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self.key = self._rng.getrandbits(ID_BITS)
        hostile = round(nodes * hostile_share)
        self.honest = [self._rng.getrandbits(ID_BITS) for _ in range(nodes - hostile)]
        made = sorted((self._rng.getrandbits(ID_BITS) for _ in range(hostile * keys_each)), key=self._distance)
        self.hostile = set(made[:hostile])
        self._accomplices = made[:BUCKET]
        self._everybody = sorted([*self.honest, *self.hostile])
        self._tables: dict[int, Any] = {}

    def two_honest(self) -> tuple[int, int]:
        writer, reader = self._rng.sample(self.honest, 2)
        return writer, reader

    def look_up(self, asker: int, *, paths: int = PATHS, width: int = WIDTH) -> Looked:
        """Go along the paths in turns, one node at a time each."""
        way = DisjointPaths(self.key, starts=self._told(asker), excluded=[asker], paths=paths, width=width)
        asked = 0
        is_moving = True
        while is_moving:
            is_moving = False
            for path in way.paths:
                node = way.next_node(path)
                if node is not None:
                    is_moving = True
                    asked += 1
                    way.note_answer(node, self._accomplices if node in self.hostile else self._told(node))
        return Looked(tuple(tuple(way.nearest(path)) for path in way.paths), asked)

    def holders(self, written: Looked) -> set[int]:
        """The honest nodes that keep what was written at the nearest nodes of each path."""
        return {node for path in written.paths for node in path[:REPLICAS_EACH]} - self.hostile

    def _told(self, node: int) -> Sequence[int]:
        table = self._tables.get(node)
        if table is None:
            table = self._tables[node] = RoutingTable(DHTID(node), BUCKET, 5)
            met = self._rng.sample(self._everybody, min(len(self._everybody), MET))
            near = sorted(self._everybody, key=lambda other: other ^ node)[:NEIGHBOURS]
            for other in dict.fromkeys([*met, *near]):
                if other != node:
                    table.add_or_update_node(DHTID(other), DHTID(other))
        return [int(other) for other, _ in table.get_nearest_neighbors(DHTID(self.key), BUCKET)]

    def _distance(self, node: int) -> int:
        return node ^ self.key
