"""A reader's way through the cells: all nodes, or a fair sample near a place."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.dht.cell_walk import ELDERS_PART, CellWalk
from cosine_p2p.dht.postings import MAX_DEPTH, hash_prefix
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.samples import identity_of, record_of

NODES = [record_of(identity_of(number), now_s=0.0) for number in range(1, 601)]
PLACES = [f"{number:04x}" for number in range(0, 1 << 16, 1 << 8)]


def cells_of(nodes: list[NodeRecord]) -> dict[str, dict[str, NodeRecord]]:
    """Each node in the first of its cells that has room."""
    cells: dict[str, dict[str, NodeRecord]] = {}
    for node in nodes:
        place = hash_prefix(node.peer_id)
        ways = (cells.setdefault(place[:depth], {}) for depth in range(MAX_DEPTH + 1))
        next(cell for cell in ways if len(cell) < MAX_CELL_OWNERS)[node.peer_id] = node
    return cells


ALL = defaultdict(dict[str, NodeRecord], cells_of(NODES))


def walked(cells: Mapping[str, dict[str, NodeRecord]], place: str, wanted: int | None) -> tuple[set[str], int]:
    """The nodes that a walk finds, and the number of cells that it reads."""
    walk, read = CellWalk(place, wanted), 0
    while prefixes := walk.next_prefixes():
        read += len(prefixes)
        for prefix in prefixes:
            walk.note(prefix, cells[prefix])
    return {record.peer_id for record in walk.found()}, read


@given(st.sampled_from(PLACES), st.integers(1, 700))
def test_at_least_as_many_as_wanted_are_found_if_there_are(place: str, wanted: int) -> None:
    assert len(walked(ALL, place, wanted)[0]) >= min(wanted, len(NODES))


@given(st.sampled_from(PLACES))
def test_the_nearest_are_found(place: str) -> None:
    found, read = walked(ALL, place, 10)
    near = {node.peer_id for node in NODES if hash_prefix(node.peer_id).startswith(place[0])}
    assert near <= found
    assert found - near <= ALL[""].keys()
    assert len(found - near) == 10 // ELDERS_PART
    assert read == 2


def test_all_nodes_are_found_about_as_often() -> None:
    """Nodes of the first cell, which every reader reads, are found as often as others, and by lot."""
    wanted = 30
    times = Counter(peer_id for place in PLACES for peer_id in walked(ALL, place, wanted)[0])
    first = [times[peer_id] for peer_id in ALL[""]]
    below = [times[node.peer_id] for node in NODES if node.peer_id not in ALL[""]]
    of_lot = wanted // ELDERS_PART * len(PLACES) / len(first)
    assert sum(first) / len(first) == pytest.approx(sum(below) / len(below) + of_lot, rel=0.1)
    assert min(times.values()) > 0
    assert len(times) == len(NODES)


@pytest.mark.parametrize("place", PLACES[::100])
def test_whoever_fills_the_cells_below_does_not_hide_those_that_were_there_first(place: str) -> None:
    """Every cell below the first is full of strangers."""
    strangers = {node.peer_id: node for node in NODES[-MAX_CELL_OWNERS:]}
    found, read = walked(defaultdict(lambda: strangers, {"": ALL[""]}), place, 32)
    assert read <= 512
    assert len(found & ALL[""].keys()) >= 32 // ELDERS_PART
