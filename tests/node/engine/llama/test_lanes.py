"""Token trees as paths in a memory that knows only paths, of open sequences and of released ones."""

from array import array
from collections.abc import Sequence

import pytest

from cosine_node.engine.base import PREFIX
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.llama.lanes import IdleLanes, Lanes, NoLane
from cosine_node.engine.prefix_cache import BlockHashes, PrefixCache

TEXT = list(range(3 * PAGE_TOKENS))


class ListedMemory:
    """Implements `cosine_node.engine.llama.lanes.LaneMemory`: the token at each position of a lane."""

    def __init__(self) -> None:
        self.lanes: dict[int, dict[int, str]] = {}

    def put(self, lanes: list[int], position: int, token: str) -> None:
        for lane in lanes:
            held = self.lanes.setdefault(lane, {})
            assert position == len(held), f"position {position} does not follow what lane {lane} holds"
            held[position] = token

    def text(self, lane: int) -> str:
        return "".join(token for _, token in sorted(self.lanes.get(lane, {}).items()))

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        for position in range(start, stop):
            if position in self.lanes.get(source, {}):
                assert position not in self.lanes.get(target, {})
                self.lanes.setdefault(target, {})[position] = self.lanes[source][position]

    def forget(self, lane: int, start: int, stop: int | None = None) -> None:
        for position in list(self.lanes.get(lane, {})):
            if position >= start and (stop is None or position < stop):
                del self.lanes[lane][position]


class Trees:
    """Lanes whose nodes are fed as soon as they are in one: node 1 is the token `b`."""

    def __init__(self, *, lanes: int, nodes: Sequence[tuple[int, int, int]] = ()) -> None:
        self.memory = ListedMemory()
        self.lanes = Lanes(self.memory, lanes=lanes)
        for parent, depth, name in nodes:
            self.feed(parent, depth, name)

    def feed(self, parent: int, depth: int, name: int, *, prefix_tokens: int = 0) -> None:
        self.lanes.extend(0, parent, depth, name, prefix_tokens=prefix_tokens)
        fed = self.lanes.numbers(0, name, depth + 1)
        self.memory.put(fed, prefix_tokens + depth, "abcdefghij"[name])

    def texts(self) -> list[str]:
        return sorted(self.memory.text(lane.number) for lane in self.lanes.of(0))


@pytest.fixture
def tree() -> Trees:
    """A chain of three tokens, a branch below its first, and a second beginning."""
    return Trees(lanes=5, nodes=[(PREFIX, 0, 0), (0, 1, 1), (1, 2, 2), (0, 1, 3), (PREFIX, 0, 4)])


def test_a_tree_takes_a_lane_for_each_of_its_leaves(tree: Trees) -> None:
    assert (tree.texts(), tree.lanes.free_lanes) == (["abc", "ad", "e"], 2)
    # A node above several leaves is in all their lanes.
    assert [len(tree.lanes.numbers(0, name, 1)) for name in (0, 4)] == [2, 1]
    tree.feed(3, 2, 5)
    assert tree.texts() == ["abc", "adf", "e"]


@pytest.mark.parametrize(
    ("path", "texts"), [((0,), ["abc", "ad"]), ((0, 1, 2), ["abc"]), ((0, 3), ["ad"]), ((4,), ["e"])]
)
def test_keeping_a_path_frees_the_lanes_that_leave_it(tree: Trees, path: Sequence[int], texts: list[str]) -> None:
    tree.lanes.keep(0, path)
    assert (tree.texts(), tree.lanes.free_lanes) == (texts, 5 - len(texts))
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
        ({0, 1, 2, 3, 4}, []),
    ],
)
def test_pruning_frees_lanes_that_hold_nothing_of_their_own(tree: Trees, names: set[int], texts: list[str]) -> None:
    tree.lanes.prune(0, names, prefix_tokens=0)
    assert (tree.texts(), tree.lanes.free_lanes) == (texts, 5 - len(texts))


def test_without_a_free_lane_the_branch_extended_longest_ago_is_given_up() -> None:
    trees = Trees(lanes=3, nodes=[(PREFIX, 0, 0), (PREFIX, 0, 1), (PREFIX, 0, 2), (1, 1, 3)])
    with pytest.raises(NoLane):
        trees.feed(PREFIX, 0, 4)
    assert trees.texts() == ["a", "bd", "c"]
    assert trees.lanes.give_up_branch()
    assert trees.texts() == ["a", "bd"]
    assert not trees.lanes.numbers(0, 2, 1)
    # The only way to its parent stays.
    assert not trees.lanes.give_up_branch(sequence=0, parent=1, depth=1)
    assert trees.lanes.give_up_branch(sequence=0, parent=0, depth=1)
    assert trees.texts() == ["a"]
    # What is left is the first lane of its sequence.
    assert not trees.lanes.give_up_branch()


class Released:
    """A cache with prefixes of sequences that are no more; sequence 0 is the first."""

    def __init__(self) -> None:
        self.memory = ListedMemory()
        self.lanes = Lanes(self.memory, lanes=4)
        self.pool = PagePool(tokens=8 * PAGE_TOKENS)
        self.cache = PrefixCache(self.pool)
        self.idle = IdleLanes(self.memory, self.lanes, self.cache)

    def release(self, owner: int, tokens: list[int]) -> None:
        """Serve and release a sequence of these tokens."""
        slots = array("q", self.pool.allocate(owner, len(tokens)))
        lane = self.lanes.begin(owner)
        for position in range(len(tokens)):
            self.memory.put([lane], position, "x")
        hashes = BlockHashes("scope")
        self.cache.extend(hashes, array("q", tokens), slots)
        self.cache.leave(hashes, slots)
        self.pool.release(owner)
        assert self.lanes.leave(owner) == lane
        self.idle.add(lane, slots, hashes.hashes, [])

    @property
    def held_tokens(self) -> int:
        return sum(len(lane) for lane in self.memory.lanes.values())


def test_released_prefixes_keep_one_copy_of_their_whole_blocks_until_the_cache_forgets_them() -> None:
    released = Released()
    released.release(0, TEXT[:40])
    assert (len(released.idle.prefixes), released.held_tokens) == (1, 32)
    released.release(1, TEXT)
    # The cache has the first two blocks of the one and the third of the other.
    assert [lane.slots.count(-1) for lane in released.idle.prefixes] == [0, 32]
    while released.cache.forget_oldest():
        released.idle.tidy([])
        assert released.held_tokens == released.cache.cached_tokens
    assert (released.idle.prefixes, released.lanes.free_lanes) == ([], 4)
