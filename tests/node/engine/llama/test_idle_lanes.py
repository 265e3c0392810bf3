from array import array

import pytest

from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.llama.lanes import IdleLanes, LanePart, Lanes, PrefixLane, parts_of, shared_tokens
from cosine_node.engine.prefix_cache import BlockHashes, PrefixCache
from tests.node.engine.lane_memory import ListedMemory

TEXT = list(range(3 * PAGE_TOKENS))


class Released:
    """A cache with prefixes of sequences that are no more; sequence 0 is the first."""

    def __init__(self) -> None:
        self.memory = ListedMemory()
        self.lanes = Lanes(self.memory, lanes=4)
        self.pool = PagePool(tokens=8 * PAGE_TOKENS)
        self.cache = PrefixCache(self.pool)
        self.idle = IdleLanes(self.memory, self.lanes, self.cache)

    def release(self, owner: int, tokens: list[int], live: list[PrefixLane] | None = None) -> None:
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
        self.idle.add(lane, slots, hashes.hashes, live or [])

    @property
    def held_tokens(self) -> int:
        return sum(len(lane) for lane in self.memory.lanes.values())


def test_a_released_prefix_keeps_its_whole_blocks() -> None:
    released = Released()
    released.release(0, TEXT[:40])
    assert (len(released.idle.prefixes), released.held_tokens) == (1, 32)


def test_of_a_text_served_twice_one_copy_is_kept() -> None:
    released = Released()
    released.release(0, TEXT[:32])
    released.release(1, TEXT)
    # The cache has the first two blocks of the one and the third of the other.
    assert [lane.slots.count(-1) for lane in released.idle.prefixes] == [0, 32]
    assert released.held_tokens == 48


def test_what_the_cache_forgets_is_freed() -> None:
    released = Released()
    released.release(0, TEXT)
    while released.cache.forget_oldest():
        released.idle.tidy([])
        assert released.held_tokens == released.cache.cached_tokens
    assert (released.idle.prefixes, released.lanes.free_lanes) == ([], 4)


def test_a_lane_is_free_once_an_open_sequence_holds_all_of_it() -> None:
    released = Released()
    released.release(0, TEXT)
    [idle] = released.idle.prefixes
    released.idle.tidy([PrefixLane(3, idle.slots[:])])
    assert (released.idle.prefixes, released.lanes.free_lanes) == ([], 4)


def test_a_prefix_is_put_together_from_the_lanes_that_hold_it() -> None:
    first, second = (PrefixLane(n, array("q", range(100 * n, 100 * n + 48))) for n in (1, 2))
    slots = first.slots[:16] + second.slots[16:]
    assert parts_of(slots, [first, second]) == [LanePart(1, 0, 16), LanePart(2, 16, 48)]
    assert shared_tokens(slots, [first]) == 16
    assert shared_tokens(slots[:40], [first, second]) == 32
    with pytest.raises(StopIteration):
        parts_of(slots, [first])
