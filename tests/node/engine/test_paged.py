"""The bookkeeping of engines with a KV pool: trees of nodes, and prefixes that sequences share and leave cached."""

import random
from collections.abc import Sequence

import pytest

from cosine_node.engine.base import PREFIX, OutOfPages, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_protocol.request import Sampling

VOCAB = 4


class Cache:
    """Sequences over a pool, with what a model would have written into each slot: whose token after which."""

    def __init__(self, pages: int) -> None:
        self.pool = PagePool(tokens=pages * PAGE_TOKENS)
        self.engine = PagedEngine(self.pool, vocab_tokens=VOCAB, context_tokens=4096, numerics="none")
        self.contents: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.scopes: dict[int, str | None] = {}

    def open(self, scope: str | None = "a") -> int:
        number = self.engine.open(sampling=Sampling(), prompt_tokens=1, scope=scope)
        self.scopes[number] = scope
        return number

    def feed(self, row: Row) -> None:
        (tree,) = self.engine.feed([row])
        for name in row.nodes:
            self.contents[tree.nodes[name].slot] = self.content(row.sequence, tree.path(name)[-1].index + 1, name)

    def content(self, number: int, length: int, name: int = PREFIX) -> tuple[str, tuple[int, ...]]:
        """What the slot of a sequence's last of `length` tokens must hold, on the path to a node."""
        tree = self.engine.tree(number)
        tokens = (*tree.tokens, *(node.token for node in tree.path(name)))[:length]
        scope = self.scopes[number]
        return (f"only {number}" if scope is None else f"scope {scope}", tokens)

    def feed_chain(self, number: int, tokens: Sequence[int]) -> None:
        """Feed tokens after the prefix and keep them."""
        if tokens:
            names = tuple(range(10**6, 10**6 + len(tokens)))
            self.feed(Row(number, tuple(tokens), names, (PREFIX, *names[:-1])))
            self.engine.keep(number, names)

    def begin(self, tokens: Sequence[int], scope: str | None = "a") -> tuple[int, int]:
        """A sequence that has kept these tokens, and how many of them it reused."""
        number = self.open(scope)
        reused = self.engine.reuse_prefix(number, tokens)
        self.feed_chain(number, tokens[reused:])
        return number, reused

    def check(self, number: int) -> None:
        tree = self.engine.tree(number)
        for index, slot in enumerate(tree.slots):
            assert self.contents[slot] == self.content(number, index + 1)
        for name, node in tree.nodes.items():
            assert self.contents[node.slot] == self.content(number, node.index + 1, name)

    def evict_all(self) -> None:
        number = self.open(None)
        self.engine.reserve(number, self.pool.capacity_tokens)
        self.engine.release(number)


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
    cache.feed(Row(number, (1, 1), (0, 1), (PREFIX, 0)))
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
    # The third took the end of the second, for a page more than was free; this takes what is left of it.
    cache.engine.reserve(cache.open(None), 32)
    assert [cache.engine.reuse_prefix(cache.open(), text) for text in texts] == [32, 0, 32]


class Walk:
    """Random sequences that begin with each other's texts, compared with lists of tokens."""

    def __init__(self, rng: random.Random, *, pages: int) -> None:
        self.rng = rng
        self.cache = Cache(pages)
        self.prefixes: dict[int, list[int]] = {}
        self.nodes: dict[int, dict[int, tuple[int, int]]] = {}
        self.known: set[tuple[str, tuple[int, ...]]] = set()
        self.named = 0
        self.has_evicted = False
        self.has_released_shared = False

    def step(self) -> None:
        actions = [self.feed, self.feed, self.keep, self.keep, self.prune]
        if not self.prefixes or self.rng.random() < 0.15:
            self.open()
        elif self.rng.random() < 0.12:
            self.release(self.rng.choice(list(self.prefixes)))
        else:
            self.rng.choice(actions)(self.rng.choice(list(self.prefixes)))
        self.check()

    def check(self) -> None:
        pool, engine = self.cache.pool, self.cache.engine
        live = set[int]()
        for number, prefix in self.prefixes.items():
            tree = engine.tree(number)
            assert tree.tokens.tolist() == prefix
            assert {name: (node.parent, node.token) for name, node in tree.nodes.items()} == self.nodes[number]
            self.cache.check(number)
            live.update(slot // PAGE_TOKENS for slot in (*tree.slots, *(node.slot for node in tree.nodes.values())))
        assert pool.available_pages == pool.pages - len(live)
        lengths = [len(prefix) + len(self.nodes[number]) for number, prefix in self.prefixes.items()]
        assert engine.live_tokens == sum(lengths)

    def open(self) -> None:
        scope = self.rng.choice([None, "", "a", "a", "a"])
        number = self.cache.open(scope)
        text = self.text()
        reused = self.cache.engine.reuse_prefix(number, text)
        reusable = range(0, len(text), PAGE_TOKENS)
        expected = max(length for length in reusable if length == 0 or (scope, tuple(text[:length])) in self.known)
        assert reused == expected or (self.has_evicted and reused < expected)
        assert reused % PAGE_TOKENS == 0
        self.prefixes[number], self.nodes[number] = text[:reused], {}
        self.feed_row(number, text[reused:], is_chain=True)

    def text(self) -> list[int]:
        """A prompt that often begins like an earlier text."""
        texts = sorted(tokens for _, tokens in self.known) or [()]
        begin = self.rng.choice(texts)
        cut = self.rng.choice([len(begin), self.rng.randint(0, len(begin))])
        return [*begin[:cut], *(self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 25)))]

    def feed(self, number: int) -> None:
        tokens = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 20))]
        self.feed_row(number, tokens, is_chain=self.rng.random() < 0.5)

    def feed_row(self, number: int, tokens: Sequence[int], *, is_chain: bool) -> None:
        names = range(self.named, self.named + len(tokens))
        self.named = names.stop
        tree = dict(self.nodes[number])
        parent = self.rng.choice([PREFIX, *tree])
        for name, token in zip(names, tokens, strict=True):
            tree[name] = (parent, token)
            parent = name if is_chain else self.rng.choice([PREFIX, *tree])
        row = Row(number, tuple(tokens), tuple(names), tuple(tree[name][0] for name in names))
        pool = self.cache.pool
        missing, before = pool.missing_pages({number: len(tokens)}), (pool.available_pages, pool.free_pages)
        try:
            self.cache.feed(row)
        except OutOfPages:
            assert missing > before[0]
            assert before == (pool.available_pages, pool.free_pages)
        else:
            assert missing <= before[0]
            self.has_evicted |= missing > before[1]
            self.nodes[number] = tree

    def keep(self, number: int) -> None:
        tree = self.nodes[number]
        name = self.rng.choice([PREFIX, *list(tree)[-3:]])
        path = self.path(number, name)
        self.cache.engine.keep(number, path)
        if path:
            below = {node: self.path(number, node) for node in tree}
            alive = [node for node, whole in below.items() if whole[: len(path)] == path and whole != path]
            self.prefixes[number] += [tree[node][1] for node in path]
            self.nodes[number] = {
                node: (PREFIX if tree[node][0] == name else tree[node][0], tree[node][1]) for node in alive
            }
            self.note(number)

    def note(self, number: int) -> None:
        scope, prefix = self.cache.scopes[number], self.prefixes[number]
        if scope is not None:
            self.known |= {(scope, tuple(prefix[:end])) for end in range(PAGE_TOKENS, len(prefix) + 1, PAGE_TOKENS)}

    def path(self, number: int, name: int) -> list[int]:
        if name == PREFIX:
            return []
        return [*self.path(number, self.nodes[number][name][0]), name]

    def prune(self, number: int) -> None:
        tree = self.nodes[number]
        dropped = set(self.rng.sample(list(tree), min(2, len(tree))))
        self.cache.engine.prune(number, list(dropped))
        gone = {name for name in tree if dropped & set(self.path(number, name))}
        self.nodes[number] = {name: node for name, node in tree.items() if name not in gone}

    def release(self, number: int) -> None:
        slots = {other: set(self.cache.engine.tree(other).slots) for other in self.prefixes}
        self.has_released_shared |= any(slots[number] & slots[other] for other in slots if other != number)
        self.cache.engine.release(number)
        del self.prefixes[number], self.nodes[number]


@pytest.mark.parametrize("pages", [5, 12, 24, 4000])
@pytest.mark.parametrize("seed", range(3))
def test_random_walks_agree_with_lists_of_tokens(seed: int, pages: int) -> None:
    walk = Walk(random.Random(seed), pages=pages)
    try:
        for _ in range(150):
            walk.step()
        for number in list(walk.prefixes):
            walk.release(number)
            walk.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {pages} pages") from error
    assert walk.has_evicted or pages != 24
    cache = walk.cache
    assert cache.engine.live_tokens == 0
    assert cache.pool.free_tokens == cache.pool.capacity_tokens
    assert cache.engine.cached_tokens == len(walk.known) * PAGE_TOKENS or walk.has_evicted
    assert cache.engine.cached_tokens <= len(walk.known) * PAGE_TOKENS
    cache.evict_all()
    assert (cache.engine.cached_tokens, cache.pool.free_pages) == (0, pages)
