"""The paths of a look-up share no node and end, and hostile nodes on one do not affect the others."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.dht.disjoint_paths import DisjointPaths

IDS = st.integers(0, 255)
NETWORKS = st.dictionaries(IDS, st.lists(IDS, max_size=12), max_size=60)


@given(NETWORKS, st.lists(IDS, max_size=12), st.lists(IDS, max_size=4), IDS, st.integers(1, 4), st.integers(1, 9))
def test_a_look_up_asks_nobody_twice_and_ends(
    network: dict[int, list[int]], starts: list[int], anchors: list[int], key: int, paths: int, width: int
) -> None:
    """For any answers; nodes missing in the network are silent."""
    way = DisjointPaths(key, starts=starts, anchors=anchors, excluded=[7], paths=paths, width=width)
    asked: list[int] = []
    while nodes := [(path, node) for path in way.paths if (node := way.next_node(path)) is not None]:
        for _, node in nodes:
            asked.append(node)
            if node in network:
                way.note_answer(node, network[node])
            else:
                way.note_silence(node)
    assert len(asked) == len(set(asked))
    assert 7 not in asked
    assert set(anchors) - {7} <= set(asked)
    assert way.answered.keys() == set(asked) & network.keys()
    reached = [node for path in way.paths for node in way.nearest(path)]
    assert sorted(reached) == sorted(way.answered)


def test_a_silent_node_gives_its_place_to_the_next() -> None:
    way = DisjointPaths(0, starts=[1, 2, 3], paths=1, width=1)
    assert way.next_node(0) == 1
    assert way.next_node(0) is None
    way.note_silence(1)
    assert way.next_node(0) == 2
    way.note_answer(2, [])
    assert way.next_node(0) is None


def test_peers_that_the_user_named_are_asked_first_on_paths_of_their_own() -> None:
    way = DisjointPaths(0, starts=range(1, 30), anchors=[200, 201], paths=2, width=3)
    assert [way.next_node(path) for path in way.paths] == [200, 201]


def test_a_path_that_hears_of_hostile_nodes_alone_spoils_no_other() -> None:
    hostile = range(1, 21)
    way = DisjointPaths(0, starts=[100, 101, 102], paths=3, width=5)
    told = {100: hostile, 101: [50, 51], 102: [60, 61], **dict.fromkeys(hostile, hostile)}
    asked: list[list[int]] = [[], [], []]
    for _ in range(20):
        for path in way.paths:
            node = way.next_node(path)
            if node is not None:
                asked[path].append(node)
                way.note_answer(node, told.get(node, []))
    assert asked == [[100, 1, 2, 3, 4, 5], [101, 50, 51], [102, 60, 61]]
