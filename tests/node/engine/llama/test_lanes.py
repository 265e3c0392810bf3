from collections.abc import Sequence

import pytest

from cosine_node.engine.base import PREFIX, OutOfPages
from cosine_node.engine.llama.lanes import Lanes, NoLane
from tests.node.engine.lane_memory import ListedMemory


class Trees:
    """Lanes whose nodes are fed as soon as they are in one: node 1 is the token `b`."""

    def __init__(self, *, lanes: int) -> None:
        self.memory = ListedMemory()
        self.lanes = Lanes(self.memory, lanes=lanes)

    def feed(self, parent: int, depth: int, name: int, *, sequence: int = 0, prefix_tokens: int = 0) -> None:
        self.lanes.extend(sequence, parent, depth, name, prefix_tokens=prefix_tokens)
        fed = self.lanes.numbers(sequence, name, depth + 1)
        self.memory.put(fed, prefix_tokens + depth, "abcdefghij"[name])

    def texts(self, sequence: int = 0) -> list[str]:
        return sorted(self.memory.text(lane.number) for lane in self.lanes.of(sequence))


@pytest.fixture
def tree() -> Trees:
    """A chain of three tokens, a branch below its first, and a second beginning."""
    trees = Trees(lanes=5)
    for parent, depth, name in [(PREFIX, 0, 0), (0, 1, 1), (1, 2, 2), (0, 1, 3), (PREFIX, 0, 4)]:
        trees.feed(parent, depth, name)
    return trees


def test_a_tree_takes_a_lane_for_each_of_its_leaves(tree: Trees) -> None:
    assert tree.texts() == ["abc", "ad", "e"]
    assert tree.lanes.free_lanes == 2
    tree.feed(3, 2, 5)
    assert tree.texts() == ["abc", "adf", "e"]


def test_a_node_below_several_leaves_is_in_all_their_lanes(tree: Trees) -> None:
    assert len(tree.lanes.numbers(0, 0, 1)) == 2
    assert len(tree.lanes.numbers(0, 4, 1)) == 1


@pytest.mark.parametrize(
    ("path", "texts"), [((0,), ["abc", "ad"]), ((0, 1, 2), ["abc"]), ((0, 3), ["ad"]), ((4,), ["e"])]
)
def test_keeping_a_path_frees_the_lanes_that_leave_it(tree: Trees, path: Sequence[int], texts: list[str]) -> None:
    tree.lanes.keep(0, path)
    assert tree.texts() == texts
    assert tree.lanes.free_lanes == 5 - len(texts)
    tree.feed(PREFIX, 0, 9, prefix_tokens=len(path))
    assert any(text.endswith("j") and len(text) == len(path) + 1 for text in tree.texts())


@pytest.mark.parametrize(
    ("names", "texts"),
    [
        ({2}, ["ab", "ad", "e"]),
        ({1, 2}, ["ad", "e"]),
        ({3}, ["abc", "e"]),
        ({0, 1, 2, 3}, ["e"]),
        ({4}, ["abc", "ad"]),
    ],
)
def test_pruning_frees_lanes_that_hold_nothing_of_their_own(tree: Trees, names: set[int], texts: list[str]) -> None:
    tree.lanes.prune(0, names, prefix_tokens=0)
    assert tree.texts() == texts
    assert tree.lanes.free_lanes == 5 - len(texts)


def test_a_sequence_without_tokens_has_no_lane(tree: Trees) -> None:
    tree.lanes.prune(0, range(5), prefix_tokens=0)
    assert tree.texts() == []
    assert tree.lanes.free_lanes == 5
    assert not any(tree.memory.lanes.values())


def test_without_a_free_lane_the_branch_extended_longest_ago_is_given_up() -> None:
    trees = Trees(lanes=3)
    trees.feed(PREFIX, 0, 0)
    trees.feed(PREFIX, 0, 1)
    trees.feed(PREFIX, 0, 2)
    trees.feed(1, 1, 3)
    with pytest.raises(NoLane):
        trees.feed(PREFIX, 0, 4)
    assert trees.texts() == ["a", "bd", "c"]
    assert trees.lanes.give_up_branch()
    assert trees.texts() == ["a", "bd"]
    assert not trees.lanes.holds(0, 2, 1)
    # The only way to its parent stays.
    assert not trees.lanes.give_up_branch(sequence=0, parent=1, depth=1)
    assert trees.lanes.give_up_branch(sequence=0, parent=0, depth=1)
    assert trees.texts() == ["a"]
    # What is left is the first lane of its sequence.
    assert not trees.lanes.give_up_branch()


def test_the_last_lane_of_a_sequence_is_cut_back_to_where_it_goes_on() -> None:
    trees = Trees(lanes=1)
    for parent, depth, name in [(PREFIX, 0, 0), (0, 1, 1), (1, 2, 2)]:
        trees.feed(parent, depth, name)
    trees.lanes.cut_back(0, 0, 1, prefix_tokens=0)
    trees.feed(0, 1, 3)
    assert trees.texts() == ["ad"]
    assert (trees.lanes.holds(0, 0, 1), trees.lanes.holds(0, 1, 2)) == (True, False)
    with pytest.raises(OutOfPages):
        trees.lanes.cut_back(1, PREFIX, 0, prefix_tokens=0)


def test_a_lane_that_was_left_is_its_callers_until_it_is_freed(tree: Trees) -> None:
    number = tree.lanes.leave(0)
    assert number is not None
    assert (tree.memory.text(number), tree.lanes.free_lanes) == ("abc", 4)
    tree.lanes.free(number)
    assert (tree.memory.text(number), tree.lanes.free_lanes) == ("", 5)
    assert tree.lanes.leave(7) is None
