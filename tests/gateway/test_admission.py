"""Admission: fairness between keys, bounded queues, and cancellation."""

import asyncio
from collections import Counter
from contextlib import ExitStack

import pytest

from cosine_gateway.admission import Admission, Slots
from cosine_gateway.api_errors import ApiError
from tests.scenes import in_virtual_time


async def hold(slots: Slots, name: str, order: list[str]) -> None:
    async with slots():
        order.append(name)
        await asyncio.sleep(1)


def counts(admission: Admission) -> tuple[int, int]:
    return admission.running, admission.waiting


def test_a_full_queue_refuses_requests_but_admits_one_with_many_choices() -> None:
    admission = Admission(max_running=1, max_waiting=2)
    with admission.admitted(1), admission.admitted(20):
        with pytest.raises(ApiError) as refused, admission.admitted(1):
            pass
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert counts(admission) == (0, 0)
    with admission.admitted(1):
        assert counts(admission) == (0, 1)


@in_virtual_time
async def test_cancelled_requests_free_their_places() -> None:
    admission = Admission(max_running=1, max_waiting=3)
    with admission.admitted(3) as slots:
        asking = [asyncio.ensure_future(hold(slots, name, [])) for name in "abc"]
        await asyncio.sleep(0.5)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert counts(admission) == (0, 0)
    order: list[str] = []
    with admission.admitted(3) as slots:
        first, second, third = (asyncio.ensure_future(hold(slots, name, order)) for name in "abc")
        await asyncio.sleep(0.5)
        # The second one is cancelled in the loop iteration in which it gets the slot of the first.
        first.cancel()
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await third
    assert order == ["a", "c"] and counts(admission) == (0, 0)


def test_a_key_that_fills_its_queue_does_not_affect_others() -> None:
    admission = Admission(max_running=2, max_waiting=6, keys=2)
    with admission.admitted(4, key="greedy"):
        with pytest.raises(ApiError) as refused, admission.admitted(1, key="greedy"):
            pass
        assert refused.value.code == "overloaded"
        with admission.admitted(1, key="modest"):
            assert counts(admission) == (0, 5)
    assert counts(admission) == (0, 0)


@in_virtual_time
async def test_no_key_takes_all_slots_and_keys_take_turns() -> None:
    admission = Admission(max_running=4, max_waiting=60, keys=2)
    order: list[str] = []
    with admission.admitted(12, key="greedy") as many, admission.admitted(4, key="modest") as few:
        asking = [asyncio.ensure_future(hold(many, "greedy", order)) for _ in range(12)]
        await asyncio.sleep(0.5)
        assert order == ["greedy"] * 3
        asking += [asyncio.ensure_future(hold(few, "modest", order)) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert order[3:] == ["modest"]
        await asyncio.gather(*asking)
    # After one second both keys have two slots.
    assert order[4:8].count("modest") == 2
    assert counts(admission) == (0, 0)


@in_virtual_time
async def test_the_first_generation_of_a_key_does_not_wait_for_other_keys() -> None:
    admission = Admission(max_running=4, max_waiting=60, keys=3)
    order: list[str] = []
    names = ("first", "second", "third")
    with ExitStack() as stack:
        slots = {name: stack.enter_context(admission.admitted(4, key=name)) for name in names}
        asking = []
        for name in names:
            asking += [asyncio.ensure_future(hold(slots[name], name, order)) for _ in range(4)]
            await asyncio.sleep(0.1)
        assert Counter(order) == {"first": 3, "second": 1, "third": 1}
        await asyncio.gather(*asking)
    assert counts(admission) == (0, 0)


@in_virtual_time
async def test_the_key_with_the_fewest_tokens_gets_the_next_slot() -> None:
    admission = Admission(max_running=2, max_waiting=60, keys=2)
    order: list[str] = []

    async def spend(slots: Slots, name: str, tokens: int) -> None:
        async with slots() as spent:
            order.append(name)
            await asyncio.sleep(1)
            spent(tokens)

    with admission.admitted(12, key="long") as long, admission.admitted(12, key="short") as short:
        asking = [spend(long, "long", 300) for _ in range(12)] + [spend(short, "short", 100) for _ in range(12)]
        await asyncio.gather(*asking)
    # Both keys get about the same number of tokens, so the short texts finish first.
    assert 2 <= order[: order.index("short") + 14].count("long") <= 6
