from array import array
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.prefix_cache import BlockHashes, PrefixCache

TOKENS = st.lists(st.integers(0, 1), max_size=80)


class Kept:
    """An owner of slots that keeps tokens one after the other."""

    def __init__(self, pool: PagePool, index: PrefixCache, *, owner: int, scope: str = "a") -> None:
        self.pool, self.index, self.owner = pool, index, owner
        self.hashes = BlockHashes(scope)
        self.tokens, self.slots = array("q"), array("q")

    def keep(self, tokens: list[int], slots: list[int] | None = None) -> None:
        self.tokens.extend(tokens)
        self.slots.extend(self.pool.allocate(self.owner, len(tokens)) if slots is None else slots)
        self.index.extend(self.hashes, self.tokens, self.slots)

    def reuse(self, tokens: list[int]) -> int:
        self.slots = self.index.reuse(self.owner, self.hashes, tokens)
        self.tokens = array("q", tokens[: len(self.slots)])
        return len(self.slots)

    def release(self) -> None:
        self.index.leave(self.hashes, self.slots)
        self.pool.release(self.owner)


@given(TOKENS, TOKENS, st.booleans())
def test_the_longest_common_prefix_of_whole_blocks_is_found(
    first: list[int], second: list[int], is_released: bool
) -> None:
    pool = PagePool(tokens=256)
    index = PrefixCache(pool)
    donor = Kept(pool, index, owner=1)
    donor.keep(first)
    if is_released:
        donor.release()
    common = [i for i in range(0, len(second), PAGE_TOKENS) if i <= len(first) and first[:i] == second[:i]]
    reuser = Kept(pool, index, owner=2)
    assert reuser.reuse(second) == max(common, default=0)
    assert reuser.slots == donor.slots[: len(reuser.slots)]


def test_a_prefix_that_differs_early_is_another_everywhere() -> None:
    pool = PagePool(tokens=256)
    index = PrefixCache(pool)
    Kept(pool, index, owner=1).keep([0, *[1] * 63])
    assert Kept(pool, index, owner=2).reuse([1] * 64) == 0


def test_slots_need_be_neither_in_order_nor_next_to_each_other() -> None:
    pool = PagePool(tokens=256)
    index = PrefixCache(pool)
    slots = pool.allocate(1, 64)[::-2]
    donor = Kept(pool, index, owner=1)
    donor.keep([2] * 32, slots)
    donor.release()
    assert (pool.free_pages, pool.available_pages, index.cached_tokens) == (12, 16, 32)
    reuser = Kept(pool, index, owner=2)
    assert reuser.reuse([2] * 17) == 16
    assert (reuser.slots.tolist(), pool.available_pages) == (slots[:16], 14)


def test_pages_that_hold_no_whole_block_are_not_cached() -> None:
    pool = PagePool(tokens=256)
    index = PrefixCache(pool)
    donor = Kept(pool, index, owner=1)
    donor.keep([3] * 47)
    donor.release()
    assert (index.cached_tokens, pool.free_pages) == (32, 14)


def test_blocks_in_use_stay_whatever_is_needed() -> None:
    pool = PagePool(tokens=64)
    index = PrefixCache(pool)
    donor = Kept(pool, index, owner=1)
    donor.keep([3] * 48)
    reuser = Kept(pool, index, owner=2)
    assert reuser.reuse([3] * 33) == 32
    donor.release()
    index.make_room(3)
    assert (index.cached_tokens, pool.free_pages) == (16, 1)
    index.make_room(2)
    assert (index.cached_tokens, pool.free_pages) == (0, 2)
    assert Kept(pool, index, owner=3).reuse([3] * 40) == 32


def test_a_block_is_not_idle_when_a_copy_of_it_is_released() -> None:
    pool = PagePool(tokens=128)
    index = PrefixCache(pool)
    indexed, copy = (Kept(pool, index, owner=owner) for owner in (1, 2))
    indexed.keep([1] * 16)
    copy.keep([1] * 16)
    copy.release()
    assert (index.cached_tokens, pool.free_pages) == (0, 7)
    indexed.release()
    assert (index.cached_tokens, pool.free_pages) == (16, 7)


def test_a_block_is_used_by_those_who_have_a_copy_of_it() -> None:
    pool = PagePool(tokens=48)
    index = PrefixCache(pool)
    indexed, copy, other = (Kept(pool, index, owner=owner) for owner in (1, 2, 3))
    for kept, token in ((indexed, 1), (copy, 1), (other, 2)):
        kept.keep([token] * 16)
    for kept in (indexed, other, copy):
        kept.release()
    index.make_room(2)
    assert [Kept(pool, index, owner=4).reuse([token] * 17) for token in (1, 2)] == [16, 0]


def test_a_token_is_hashed_once_whatever_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()

    def counting(data: bytes, **options: Any) -> Any:
        hashed.append(len(data))
        return blake2b(data, **options)

    pool = PagePool(tokens=1024)
    index = PrefixCache(pool)
    donor = Kept(pool, index, owner=1)
    monkeypatch.setattr("cosine_node.engine.prefix_cache.blake2b", counting)
    for token in range(10 * PAGE_TOKENS):
        donor.keep([token])
    assert len(hashed) == 10
    assert len(set(hashed)) == 1
    donor.release()
    assert len(hashed) == 10
