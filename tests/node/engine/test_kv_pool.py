import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cosine_node.engine.base import OutOfPages
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_protocol.errors import LocalProtocolError


def test_slots_come_in_order_and_pages_follow_each_other() -> None:
    pool = PagePool(tokens=100)
    assert pool.capacity_tokens == 112
    assert pool.allocate(1, 20) == list(range(20))
    assert pool.allocate(2, 1) == [48]
    pool.release(1)
    assert pool.allocate(2, 16) == list(range(49, 65))


def test_owners_that_grow_together_keep_their_slots_in_one_run() -> None:
    pool = PagePool(tokens=16 * 128)
    slots: dict[int, list[int]] = {owner: [] for owner in range(16)}
    for _ in range(127):
        for owner, taken in slots.items():
            taken += pool.allocate(owner, 1)
    assert all(taken == list(range(taken[0], taken[0] + 127)) for taken in slots.values())


def test_a_failed_reservation_changes_nothing() -> None:
    pool = PagePool(tokens=48)
    pool.allocate(1, 10)
    with pytest.raises(OutOfPages):
        pool.reserve({1: 20, 2: 40})
    assert pool.free_tokens == 32
    with pytest.raises(OutOfPages):
        pool.allocate(1, 39)
    assert pool.allocate(1, 38) == list(range(10, 48))


def test_an_emptied_page_is_free() -> None:
    pool = PagePool(tokens=64)
    slots = pool.allocate(1, 33)
    pool.free(1, slots[32:])
    assert pool.free_tokens == 32
    pool.free(1, slots[:16])
    assert pool.free_tokens == 48
    assert pool.allocate(1, 1) == [32]
    assert pool.allocate(2, 1) == [0]


def test_reserved_room_is_there() -> None:
    pool = PagePool(tokens=32)
    pool.reserve({1: 17})
    with pytest.raises(OutOfPages):
        pool.allocate(2, 1)
    assert len(pool.allocate(1, 32)) == 32


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


def test_own_pages_follow_the_shared_ones() -> None:
    pool = PagePool(tokens=96)
    pool.allocate(1, 16)
    [first, *_] = pool.allocate(2, 40)
    page = first // PAGE_TOKENS
    pool.cache([page])
    pool.share(3, [page])
    pool.release(1)
    pool.release(2)
    assert pool.allocate(3, 1) == [first + PAGE_TOKENS]


def test_nothing_is_freed_twice() -> None:
    pool = PagePool(tokens=48)
    pool.allocate(1, 20)
    pool.free(1, [3])
    for owner, slots in ((1, [3]), (1, [4, 4]), (1, [47]), (2, [5])):
        with pytest.raises(LocalProtocolError):
            pool.free(owner, slots)
    with pytest.raises(LocalProtocolError):
        pool.uncache([0])
    with pytest.raises(LocalProtocolError):
        pool.share(2, [0, 2])
    with pytest.raises(LocalProtocolError):
        pool.cache([0, 2])
    pool.release(1)
    pool.release(1)
    assert pool.free_pages == 3


class Model:
    """The pool as sets of slots and pages, to compare with."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool = PagePool(tokens=rng.randint(1, 12) * PAGE_TOKENS)
        self.owned: dict[int, list[int]] = {}
        self.unused: dict[int, int] = {}
        self.shared: dict[int, set[int]] = {}
        self.cached: list[int] = []

    def used_pages(self, *owners: int) -> set[int]:
        """Pages with slots allocated to these owners, or to any."""
        return {slot // PAGE_TOKENS for owner in owners or self.owned for slot in self.owned.get(owner, ())}

    def check(self) -> None:
        used = [slot for slots in self.owned.values() for slot in slots]
        assert len(used) == len(set(used))
        assert all(0 <= slot < self.pool.capacity_tokens for slot in used)
        assert len(self.used_pages()) == sum(len(self.used_pages(owner)) for owner in self.owned)
        only_shared = set[int]().union(*self.shared.values()) - self.used_pages()
        held_tokens = len(used) + sum(self.unused.values()) + len(only_shared) * PAGE_TOKENS
        assert self.pool.free_tokens == self.pool.capacity_tokens - held_tokens
        only_cached = set(self.cached) - only_shared - self.used_pages()
        assert self.pool.available_pages == self.pool.free_pages + len(only_cached)

    def step(self) -> None:
        owner = self.rng.randrange(4)
        self.owned.setdefault(owner, [])
        self.unused.setdefault(owner, 0)
        self.shared.setdefault(owner, set())
        actions = [self.allocate, self.allocate, self.free, self.reserve, self.share, self.release]
        self.rng.choice([*actions, self.cache, self.uncache])(owner)

    def allocate(self, owner: int) -> None:
        count = self.rng.randrange(40)
        others = set(self.cached).union(*self.shared.values()) - self.used_pages(owner)
        with self.full_only_for(count):
            taken = self.pool.allocate(owner, count)
            assert not others & {slot // PAGE_TOKENS for slot in taken}
            self.owned[owner] += taken
            self.note_reserved(owner, count)
            self.unused[owner] -= count

    def reserve(self, owner: int) -> None:
        count = self.rng.randrange(60)
        with self.full_only_for(count):
            self.pool.reserve({owner: count})
            self.note_reserved(owner, count)

    def note_reserved(self, owner: int, count: int) -> None:
        while self.unused[owner] < count:
            self.unused[owner] += PAGE_TOKENS

    @contextmanager
    def full_only_for(self, count: int) -> Iterator[None]:
        """Lets `OutOfPages` pass where that many tokens are not free, and nothing was changed."""
        before = self.pool.free_tokens
        try:
            yield
        except OutOfPages:
            assert before == self.pool.free_tokens
            assert count > self.pool.free_pages * PAGE_TOKENS

    def free(self, owner: int) -> None:
        slots = self.owned[owner]
        self.rng.shuffle(slots)
        count = self.rng.randint(0, len(slots))
        before = self.used_pages(owner)
        self.pool.free(owner, slots[:count])
        del slots[:count]
        self.unused[owner] += count - PAGE_TOKENS * len(before - self.used_pages(owner))

    def share(self, owner: int) -> None:
        known = sorted(self.used_pages().union(self.cached, *self.shared.values()))
        pages = self.rng.sample(known, min(2, len(known)))
        self.pool.share(owner, pages)
        self.shared[owner] |= set(pages)

    def cache(self, owner: int) -> None:
        pages = self.used_pages(owner) | self.shared[owner]
        self.pool.cache(pages)
        self.cached += pages

    def uncache(self, owner: int) -> None:
        if self.cached:
            page = self.cached.pop(self.rng.randrange(len(self.cached)))
            self.pool.uncache([page])

    def release(self, owner: int) -> None:
        if self.rng.random() < 0.3:
            self.pool.release(owner)
            self.owned[owner], self.unused[owner], self.shared[owner] = [], 0, set()


@pytest.mark.parametrize("seed", range(40))
def test_random_walks_agree_with_the_model(seed: int) -> None:
    model = Model(random.Random(seed))
    for step in range(250):
        try:
            model.step()
            model.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    for owner in model.owned:
        model.pool.release(owner)
    assert model.pool.free_tokens == model.pool.capacity_tokens, f"seed {seed}"
    for page in model.cached:
        model.pool.uncache([page])
    assert model.pool.free_pages == model.pool.pages, f"seed {seed}"
