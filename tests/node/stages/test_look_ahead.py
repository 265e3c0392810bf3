"""A feed is left out exactly if the trees that come of it and of what follows never need its nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import SequenceTree
from cosine_node.stages.inbox import will_be_dropped
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import KeepPath, PruneNodes, ReleaseSequence

ROW = Row(1, (5, 6), (7, 8), (PREFIX, 7))


@pytest.mark.parametrize(
    ("later", "is_dropped"),
    [
        ([], False),
        ([ReleaseSequence(1)], True),
        ([ReleaseSequence(2), PruneNodes(2, (7,)), KeepPath(2, (3,))], False),
        ([PruneNodes(1, (8,))], False),
        ([PruneNodes(1, (7,))], True),
        ([PruneNodes(1, (8,)), PruneNodes(1, (7,))], True),
        ([KeepPath(1, (7,))], False),
        ([KeepPath(1, (7,)), ReleaseSequence(1)], False),
        ([KeepPath(1, (3,))], True),
        ([KeepPath(1, (9,))], True),
    ],
    ids=str,
)
def test_what_lies_behind_a_feed_decides_about_it(later: list[object], is_dropped: bool) -> None:
    assert will_be_dropped(ROW, {3: PREFIX}, later) == is_dropped


def test_a_node_whose_parent_becomes_the_prefix_outlives_a_new_node_of_its_parents_name() -> None:
    row = Row(1, (5,), (4,), (3,))
    assert not will_be_dropped(row, {3: PREFIX}, [KeepPath(1, (3,)), PruneNodes(1, (3,))])
    assert will_be_dropped(row, {3: PREFIX}, [PruneNodes(1, (3,))])


@given(st.data())
def test_it_says_what_real_trees_do(data: st.DataObject) -> None:
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    name = 0

    def feed() -> Row:
        nonlocal name
        count = data.draw(st.integers(1, 3))
        nodes = tuple(range(name, name + count))
        name += count
        parents = [data.draw(st.sampled_from([PREFIX, *tree.nodes, *nodes[:index]])) for index in range(count)]
        return Row(1, (0,) * count, nodes, tuple(parents))

    for _ in range(data.draw(st.integers(0, 2))):
        before = feed()
        tree.add(before, before.nodes)
    row = feed()
    parents = {node: fed.parent for node, fed in tree.nodes.items()}
    tree.add(row, row.nodes)
    is_needed, later = False, list[object]()
    for _ in range(data.draw(st.integers(0, 5))):
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            another = feed()
            tree.add(another, another.nodes)
            later.append(another)
        elif tree.nodes and kind == 1:
            pruned = tuple(data.draw(st.lists(st.sampled_from([*tree.nodes]), max_size=2)))
            tree.prune(pruned)
            later.append(PruneNodes(1, pruned))
        elif tree.nodes:
            path, at = list[int](), data.draw(st.sampled_from([*tree.nodes]))
            while at != PREFIX:
                path.append(at)
                at = tree.nodes[at].parent
            tree.keep(path[::-1])
            is_needed |= not set(path).isdisjoint(row.nodes)
            later.append(KeepPath(1, tuple(path[::-1])))
    is_dropped = not is_needed and tree.nodes.keys().isdisjoint(row.nodes)
    assert will_be_dropped(row, parents, later) == is_dropped
