import random

import pytest

from cosine_node.engine.base import OutOfPages
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool


def test_slots_come_in_order_and_pages_follow_each_other() -> None:
    pool = PagePool(tokens=100)
    assert pool.capacity_tokens == 112
    assert pool.take(1, 20) == list(range(20))
    assert pool.take(2, 1) == [32]
    pool.release(1)
    assert pool.take(2, 16) == list(range(33, 49))


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


class Model:
    """The pool as sets of slots, to compare with."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.pool = PagePool(tokens=pages * PAGE_TOKENS)
        self.owned: dict[int, list[int]] = {}

    def check(self) -> None:
        used = [slot for slots in self.owned.values() for slot in slots]
        assert len(used) == len(set(used)) == self.pool.used_tokens
        assert all(0 <= slot < self.pool.capacity_tokens for slot in used)
        owners_of_page: dict[int, set[int]] = {}
        for owner, slots in self.owned.items():
            for slot in slots:
                owners_of_page.setdefault(slot // PAGE_TOKENS, set()).add(owner)
        assert all(len(owners) == 1 for owners in owners_of_page.values())
        total = self.pool.free_tokens + self.pool.used_tokens + self.pool.slack_tokens
        assert total == self.pool.capacity_tokens

    def step(self, rng: random.Random) -> None:
        owner = rng.randrange(4)
        slots = self.owned.setdefault(owner, [])
        action = rng.choice(["take", "take", "give_back", "reserve", "release"])
        if action == "take":
            self._take(owner, rng.randrange(40))
        elif action == "give_back":
            rng.shuffle(slots)
            count = rng.randint(0, len(slots))
            self.pool.give_back(owner, slots[:count])
            del slots[:count]
        elif action == "reserve":
            self._reserve(owner, rng.randrange(60))
        elif rng.random() < 0.3:
            self.pool.release(owner)
            slots.clear()

    def _take(self, owner: int, count: int) -> None:
        before = (self.pool.free_tokens, self.pool.slack_tokens)
        try:
            self.owned[owner].extend(self.pool.take(owner, count))
        except OutOfPages:
            assert before == (self.pool.free_tokens, self.pool.slack_tokens)
            assert count > self.pool.free_tokens

    def _reserve(self, owner: int, count: int) -> None:
        try:
            self.pool.reserve({owner: count})
        except OutOfPages:
            assert count > self.pool.free_tokens


@pytest.mark.parametrize("seed", range(30))
def test_random_walks_agree_with_the_model(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(pages=rng.randint(1, 12))
    for _ in range(200):
        model.step(rng)
        model.check()
    for owner in model.owned:
        model.pool.release(owner)
    assert model.pool.free_tokens == model.pool.capacity_tokens
