import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cosine_node.engine.base import OutOfPages
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool, halving
from cosine_protocol.errors import LocalProtocolError


def test_slots_come_in_order_and_pages_follow_each_other() -> None:
    pool = PagePool(tokens=100)
    assert pool.capacity_tokens == 112
    assert pool.take(1, 20) == list(range(20))
    assert pool.take(2, 1) == [48]
    pool.release(1)
    assert pool.take(2, 16) == list(range(49, 65))


def test_owners_that_grow_together_keep_their_slots_in_one_run() -> None:
    pool = PagePool(tokens=16 * 128)
    slots: dict[int, list[int]] = {owner: [] for owner in range(16)}
    for _ in range(127):
        for owner, taken in slots.items():
            taken += pool.take(owner, 1)
    assert all(taken == list(range(taken[0], taken[0] + 127)) for taken in slots.values())


def test_halving_visits_every_place_once_where_there_are_a_power_of_two() -> None:
    assert [halving(number, 8) for number in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert halving(0, 1) == 0
    assert all(0 <= halving(number, 100) < 100 for number in range(100))


def test_a_failed_reservation_changes_nothing() -> None:
    pool = PagePool(tokens=48)
    pool.take(1, 10)
    with pytest.raises(OutOfPages):
        pool.reserve({1: 20, 2: 40})
    assert (pool.free_tokens, pool.used_tokens, pool.slack_tokens) == (32, 10, 6)
    with pytest.raises(OutOfPages):
        pool.take(1, 39)
    assert pool.used_tokens == 10


def test_an_emptied_page_goes_back() -> None:
    pool = PagePool(tokens=64)
    slots = pool.take(1, 33)
    pool.give_back(1, slots[32:])
    assert pool.free_tokens == 32
    pool.give_back(1, slots[:16])
    assert pool.free_tokens == 48
    assert pool.take(1, 1) == [32]
    assert pool.take(2, 1) == [0]


def test_reserved_room_is_there() -> None:
    pool = PagePool(tokens=32)
    pool.reserve({1: 17})
    with pytest.raises(OutOfPages):
        pool.take(2, 1)
    assert len(pool.take(1, 32)) == 32


def test_a_page_is_free_when_its_owner_its_sharers_and_its_retentions_are_gone() -> None:
    pool = PagePool(tokens=64)
    pool.take(1, 20)
    pool.share(2, [0])
    pool.retain([0, 1])
    pool.retain([1])
    pool.release(1)
    assert (pool.free_pages, pool.obtainable_pages, pool.orphaned_tokens) == (2, 3, PAGE_TOKENS)
    pool.release(2)
    assert (pool.free_pages, pool.obtainable_pages, pool.orphaned_tokens) == (2, 4, 0)
    pool.forget([0, 1])
    assert pool.free_pages == 3
    pool.forget([1])
    assert pool.free_pages == 4


def test_what_a_shared_page_has_left_goes_to_its_owner_only() -> None:
    pool = PagePool(tokens=48)
    pool.take(1, 10)
    pool.share(2, [0])
    assert pool.take(2, 3) == [16, 17, 18]
    assert pool.take(1, 3) == [10, 11, 12]
    pool.release(1)
    assert pool.take(3, 1) == [32]
    assert pool.take(2, 13) == list(range(19, 32))
    with pytest.raises(OutOfPages):
        pool.take(2, 1)


def test_own_pages_follow_the_shared_ones() -> None:
    pool = PagePool(tokens=96)
    pool.take(1, 16)
    [first, *_] = pool.take(2, 40)
    page = first // PAGE_TOKENS
    pool.retain([page])
    pool.share(3, [page])
    pool.release(1)
    pool.release(2)
    assert pool.take(3, 1) == [first + PAGE_TOKENS]


def test_nothing_is_given_back_twice() -> None:
    pool = PagePool(tokens=48)
    pool.take(1, 20)
    pool.give_back(1, [3])
    for owner, slots in ((1, [3]), (1, [4, 4]), (1, [47]), (2, [5])):
        with pytest.raises(LocalProtocolError):
            pool.give_back(owner, slots)
    with pytest.raises(LocalProtocolError):
        pool.forget([0])
    with pytest.raises(LocalProtocolError):
        pool.share(2, [0, 2])
    with pytest.raises(LocalProtocolError):
        pool.retain([0, 2])
    pool.release(1)
    pool.release(1)
    assert (pool.free_pages, pool.used_tokens, pool.slack_tokens) == (3, 0, 0)


class Model:
    """The pool as sets of slots and pages, to compare with."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool = PagePool(tokens=rng.randint(1, 12) * PAGE_TOKENS)
        self.owned: dict[int, list[int]] = {}
        self.shared: dict[int, set[int]] = {}
        self.retained: list[int] = []

    def used_pages(self, *owners: int) -> set[int]:
        """Pages with slots handed out to these owners, or to any."""
        return {slot // PAGE_TOKENS for owner in owners or self.owned for slot in self.owned.get(owner, ())}

    def check(self) -> None:
        used = [slot for slots in self.owned.values() for slot in slots]
        assert len(used) == len(set(used)) == self.pool.used_tokens
        assert all(0 <= slot < self.pool.capacity_tokens for slot in used)
        assert len(self.used_pages()) == sum(len(self.used_pages(owner)) for owner in self.owned)
        orphaned = set[int]().union(*self.shared.values()) - self.used_pages()
        assert self.pool.orphaned_tokens == len(orphaned) * PAGE_TOKENS
        held = self.pool.used_tokens + self.pool.slack_tokens + self.pool.orphaned_tokens
        assert self.pool.free_tokens + held == self.pool.capacity_tokens
        only_retained = set(self.retained) - orphaned - self.used_pages()
        assert self.pool.obtainable_pages == self.pool.free_pages + len(only_retained)

    def step(self) -> None:
        owner = self.rng.randrange(4)
        self.owned.setdefault(owner, [])
        self.shared.setdefault(owner, set())
        actions = [self.take, self.take, self.give_back, self.reserve, self.share, self.release]
        self.rng.choice([*actions, self.retain, self.forget])(owner)

    def take(self, owner: int) -> None:
        count = self.rng.randrange(40)
        others = set(self.retained).union(*self.shared.values()) - self.used_pages(owner)
        with self.full_only_for(count):
            taken = self.pool.take(owner, count)
            assert not others & {slot // PAGE_TOKENS for slot in taken}
            self.owned[owner] += taken

    def reserve(self, owner: int) -> None:
        count = self.rng.randrange(60)
        with self.full_only_for(count):
            self.pool.reserve({owner: count})

    @contextmanager
    def full_only_for(self, count: int) -> Iterator[None]:
        """Lets `OutOfPages` pass where that many tokens are not free, and nothing was changed."""
        before = (self.pool.free_tokens, self.pool.slack_tokens)
        try:
            yield
        except OutOfPages:
            assert before == (self.pool.free_tokens, self.pool.slack_tokens)
            assert count > self.pool.free_pages * PAGE_TOKENS

    def give_back(self, owner: int) -> None:
        slots = self.owned[owner]
        self.rng.shuffle(slots)
        count = self.rng.randint(0, len(slots))
        self.pool.give_back(owner, slots[:count])
        del slots[:count]

    def share(self, owner: int) -> None:
        known = sorted(self.used_pages().union(self.retained, *self.shared.values()))
        pages = self.rng.sample(known, min(2, len(known)))
        self.pool.share(owner, pages)
        self.shared[owner] |= set(pages)

    def retain(self, owner: int) -> None:
        pages = self.used_pages(owner) | self.shared[owner]
        self.pool.retain(pages)
        self.retained += pages

    def forget(self, owner: int) -> None:
        if self.retained:
            page = self.retained.pop(self.rng.randrange(len(self.retained)))
            self.pool.forget([page])

    def release(self, owner: int) -> None:
        if self.rng.random() < 0.3:
            self.pool.release(owner)
            self.owned[owner], self.shared[owner] = [], set()


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
    for page in model.retained:
        model.pool.forget([page])
    assert model.pool.free_pages == model.pool.pages, f"seed {seed}"
