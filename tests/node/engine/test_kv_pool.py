"""Pages of the KV pool: what is free, taken, shared, cached, and in sight of layers with a window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.base import OutOfPages, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS, FreePages, PagePool, WindowPages
from cosine_node.engine.paged import SPARE_PAGES, PagedEngine
from cosine_protocol.request import Sampling


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(-2, 40)), max_size=200))
def test_what_is_taken_was_free_and_what_is_put_back_is_found_again(
    pages: int, steps: list[tuple[bool, int]]
) -> None:
    free, taken = FreePages(pages), set[int]()
    for is_taking, number in steps:
        if is_taking and free.count:
            page = free.take(number)
            assert page not in taken
            assert page == number or number in taken or not 0 <= number < pages
            taken.add(page)
        elif taken:
            page = sorted(taken)[number % len(taken)]
            taken.remove(page)
            free.put(page)
        assert free.count == pages - len(taken)
        assert all(free.is_free(page) == (page not in taken) for page in range(pages))


def test_owners_that_grow_together_keep_their_slots_in_one_run() -> None:
    pool = PagePool(tokens=16 * 128)
    slots: dict[int, list[int]] = {owner: [] for owner in range(16)}
    for _ in range(127):
        for owner, taken in slots.items():
            taken += pool.allocate(owner, 1)
    assert all(taken == list(range(taken[0], taken[0] + 127)) for taken in slots.values())


def test_a_page_is_free_when_its_owner_its_sharers_and_its_cache_uses_are_gone() -> None:
    pool = PagePool(tokens=64)
    pool.allocate(1, 20)
    pool.share(2, [0])
    pool.cache([0, 1])
    pool.cache([1])
    pool.release(1)
    assert (pool.free_pages, pool.available_pages) == (2, 3)
    pool.release(2)
    assert (pool.free_pages, pool.available_pages) == (2, 4)
    pool.uncache([0, 1])
    assert pool.free_pages == 3
    pool.uncache([1])
    assert pool.free_pages == 4


def test_what_a_shared_page_has_left_goes_to_its_owner_only() -> None:
    pool = PagePool(tokens=48)
    pool.allocate(1, 10)
    pool.share(2, [0])
    assert pool.allocate(2, 3) == [16, 17, 18]
    assert pool.allocate(1, 3) == [10, 11, 12]
    pool.release(1)
    assert pool.allocate(3, 1) == [32]
    assert pool.allocate(2, 13) == list(range(19, 32))
    with pytest.raises(OutOfPages):
        pool.allocate(2, 1)


WINDOW = 40


@given(st.lists(st.tuples(st.sampled_from(["take", "join", "leave", "clear"]), st.integers(0, 7)), max_size=80))
def test_pages_in_use_keep_their_window_pages_and_no_two_have_the_same(steps: list[tuple[str, int]]) -> None:
    windows = WindowPages(pages=8, tokens=4 * PAGE_TOKENS, window_tokens=WINDOW)
    users, place = [0] * 8, dict[int, int]()
    for step, page in steps:
        match step:
            case "take" if not windows.has(page) and windows.available_pages:
                windows.take(page)
                users[page] = 1
                place[page] = int(windows.slots_of(np.array([page * PAGE_TOKENS]))[0])
            case "join" if windows.has(page):
                windows.join(page)
                users[page] += 1
            case "leave" if users[page]:
                windows.leave(page)
                users[page] -= 1
            case "clear" if not users[page]:
                windows.clear(page)
        held = [number for number in range(8) if windows.has(number)]
        slots = {number: int(windows.slots_of(np.array([number * PAGE_TOKENS]))[0]) for number in range(8)}
        assert all(windows.has(number) and slots[number] == place[number] for number in range(8) if users[number])
        assert len({slots[number] for number in held}) == len(held)
        assert all((slots[number] < windows.slots) == (number in held) for number in range(8))
        assert windows.available_pages == 4 - sum(bool(count) for count in users)


def test_a_pool_without_window_pages_left_feeds_nothing() -> None:
    windows = WindowPages(pages=8, tokens=2 * PAGE_TOKENS, window_tokens=WINDOW)
    pool = PagePool(tokens=8 * PAGE_TOKENS, windows=windows)
    pool.allocate(1, 20)
    with pytest.raises(OutOfPages, match="1 window pages are needed and 0 are free"):
        pool.allocate(2, 1)
    assert pool.free_pages == 6
    pool.release(1)
    assert (pool.free_pages, windows.available_pages) == (8, 2)


@given(st.integers(1, 70), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=12))
def test_a_window_behind_the_prefix_is_always_there_and_little_more(
    window: int, steps: list[tuple[int, int]]
) -> None:
    windows = WindowPages(pages=128, tokens=64 * PAGE_TOKENS, window_tokens=window)
    pool = PagePool(tokens=128 * PAGE_TOKENS, windows=windows)
    engine = PagedEngine(pool, vocab_tokens=9, context_tokens=1 << 10, numerics="")
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1, scope="a")
    for fed, kept in steps:
        [tree] = engine.feed([Row.chain(sequence, [1] * fed)])
        # A part is kept, the rest is pruned: later tokens take the slots between.
        engine.keep(sequence, range(min(kept, fed)))
        engine.prune(sequence, list(tree.nodes))
        other = engine.open(sampling=Sampling(), prompt_tokens=1)
        pool.reserve({other: windows.available_pages * PAGE_TOKENS})
        engine.release(other)
        first = max(0, len(tree.tokens) - window + 1)
        assert all(windows.has(slot // PAGE_TOKENS) for slot in tree.slots[first:])
    fed_tokens = max((fed for fed, _ in steps), default=0)
    assert pool.near_pages(sequence) <= (window + fed_tokens) // PAGE_TOKENS + 2 * SPARE_PAGES
    engine.release(sequence)
    assert windows.available_pages == 64
