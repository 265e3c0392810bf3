"""Pages of the KV pool, prefixes that sequences share and leave cached, and visible windows."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import PREFIX, OutOfPages, Row
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool, WindowPages
from cosine_engine.paged import SPARE_PAGES, PagedEngine
from cosine_protocol.request import Sampling

VOCAB = 4


class Cache:
    """An engine without a model, and its pool."""

    def __init__(self, pages: int) -> None:
        self.pool = PagePool(tokens=pages * PAGE_TOKENS)
        self.engine = PagedEngine(self.pool, vocab_tokens=VOCAB, context_tokens=4096, numerics="none")

    def open(self, scope: str | None = "a") -> int:
        return self.engine.open(sampling=Sampling(), prompt_tokens=1, scope=scope)

    def begin(self, tokens: Sequence[int], scope: str | None = "a") -> tuple[int, int]:
        """Return a sequence that has kept these tokens, and the number of them that it reused."""
        number = self.open(scope)
        reused = self.engine.reuse_prefix(number, tokens)
        if rest := tokens[reused:]:
            row = Row.chain(number, rest)
            self.engine.feed([row])
            self.engine.keep(number, row.nodes)
        return number, reused


def _text(length: int, *, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize(
    ("length", "asked", "reused"),
    [(15, 40, 0), (16, 40, 16), (40, 40, 32), (48, 48, 32), (48, 49, 48), (48, 9, 0)],
)
def test_whole_blocks_are_reused_and_a_token_is_left(
    length: int, asked: int, reused: int, is_released: bool
) -> None:
    cache = Cache(pages=8)
    text = _text(60)
    donor, _ = cache.begin(text[:length])
    slots = cache.engine.tree(donor).slots[:reused]
    if is_released:
        cache.engine.release(donor)
    number = cache.open()
    assert cache.engine.reuse_prefix(number, text[:asked]) == reused
    tree = cache.engine.tree(number)
    assert (tree.tokens.tolist(), tree.slots) == (text[:reused], slots)
    cache.engine.feed([Row(number, (1, 1), (0, 1), (PREFIX, 0))])
    assert [tree.nodes[name].index for name in (0, 1)] == [reused, reused + 1]


def test_only_equal_scopes_share() -> None:
    cache = Cache(pages=20)
    text = _text(40)
    for scope in ("a", "", None):
        first, reused = cache.begin(text, scope)
        assert reused == 0
        assert cache.begin(text, scope)[1] == (0 if scope is None else 32)
        cache.engine.release(first)
    assert cache.begin(text, "b")[1] == 0
    assert cache.begin(text, None)[1] == 0


def test_a_released_sequence_takes_room_only_as_long_as_nobody_needs_it() -> None:
    cache = Cache(pages=4)
    text = _text(40)
    number, _ = cache.begin(text)
    assert (cache.pool.free_tokens, cache.engine.cached_tokens) == (16, 0)
    cache.engine.release(number)
    assert (cache.engine.live_tokens, cache.engine.cached_tokens) == (0, 32)
    assert (cache.pool.free_tokens, cache.pool.free_pages) == (64, 2)
    other = cache.open(None)
    cache.engine.reserve(other, 33)
    assert (cache.pool.free_tokens, cache.engine.cached_tokens) == (16, 16)
    with pytest.raises(OutOfPages, match="2 pages are needed and 1 of 4"):
        cache.engine.reserve(other, 65)
    assert cache.engine.cached_tokens == 16
    assert cache.engine.reuse_prefix(cache.open(), text[:17]) == 16
    assert (cache.pool.free_tokens, cache.engine.cached_tokens) == (0, 0)
    with pytest.raises(OutOfPages):
        cache.engine.reserve(other, 49)


def test_the_prefix_used_last_is_forgotten_last() -> None:
    cache = Cache(pages=6)
    texts = [_text(33, seed=seed) for seed in range(3)]
    for text in texts[:2]:
        cache.engine.release(cache.begin(text)[0])
    cache.engine.release(cache.begin(texts[0])[0])
    cache.engine.release(cache.begin(texts[2])[0])
    # The third took the end of the second, for a page more than was free; this takes the rest.
    cache.engine.reserve(cache.open(None), 32)
    assert [cache.engine.reuse_prefix(cache.open(), text) for text in texts] == [32, 0, 32]


def test_owners_that_grow_together_keep_their_slots_in_one_run() -> None:
    pool = PagePool(tokens=16 * 128)
    slots: dict[int, list[int]] = {owner: [] for owner in range(16)}
    for _ in range(127):
        for owner, taken in slots.items():
            taken += pool.allocate(owner, 1)
    assert all(taken == list(range(taken[0], taken[0] + 127)) for taken in slots.values())


WINDOW = 40


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
