"""So many at once, so many more in line, in turns between keys and else in the order they came."""

import asyncio

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.admission import Admission, Tickets
from cosine_node.gateway.api_errors import ApiError


async def hold(tickets: Tickets, name: str, order: list[str]) -> None:
    async with tickets.slot():
        order.append(name)
        await asyncio.sleep(1)


def counts(admission: Admission) -> tuple[int, int]:
    return admission.running, admission.waiting


def test_places_are_given_in_order_and_given_back() -> None:
    async def run() -> None:
        admission = Admission(max_running=2, max_waiting=10)
        order: list[str] = []
        with admission.admitted(5) as tickets:
            asking = [asyncio.ensure_future(hold(tickets, name, order)) for name in "abcde"]
            seen = []
            for _ in range(3):
                await asyncio.sleep(0.5)
                seen.append(counts(admission))
                await asyncio.sleep(0.5)
            await asyncio.gather(*asking)
        assert seen == [(2, 3), (2, 1), (1, 0)]
        assert (order, counts(admission)) == (list("abcde"), (0, 0))

    run_virtual(run())


def test_a_full_line_refuses_whoever_comes_next() -> None:
    admission = Admission(max_running=1, max_waiting=2)
    with admission.admitted(1), admission.admitted(2):
        with pytest.raises(ApiError) as refused, admission.admitted(1):
            pass
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert counts(admission) == (0, 0)
    with admission.admitted(1):
        assert counts(admission) == (0, 1)


def test_many_choices_come_in_whole() -> None:
    admission = Admission(max_running=1, max_waiting=0)
    with admission.admitted(20), pytest.raises(ApiError), admission.admitted(1):
        pass
    assert counts(admission) == (0, 0)


def test_who_leaves_the_line_leaves_no_trace() -> None:
    async def run() -> None:
        admission = Admission(max_running=1, max_waiting=3)
        with admission.admitted(3) as tickets:
            asking = [asyncio.ensure_future(hold(tickets, name, [])) for name in "abc"]
            await asyncio.sleep(0.5)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert counts(admission) == (0, 0)
        with admission.admitted(1) as tickets:
            await hold(tickets, "d", [])

    run_virtual(run())


def test_a_key_that_fills_its_line_leaves_the_others_theirs() -> None:
    admission = Admission(max_running=2, max_waiting=6, keys=2)
    with admission.admitted(4, key="greedy"):
        with pytest.raises(ApiError) as refused, admission.admitted(1, key="greedy"):
            pass
        assert refused.value.code == "overloaded"
        with admission.admitted(1, key="modest"):
            assert counts(admission) == (0, 5)
    assert counts(admission) == (0, 0)


def test_no_key_has_all_places_and_keys_come_in_turns() -> None:
    async def run() -> None:
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
        # From the second second on both have two places.
        assert order[4:8].count("modest") == 2
        assert counts(admission) == (0, 0)

    run_virtual(run())


def test_a_place_given_to_who_has_just_left_goes_to_the_next() -> None:
    async def run() -> None:
        admission = Admission(max_running=1, max_waiting=9)
        order: list[str] = []
        with admission.admitted(3) as tickets:
            first, second, third = (asyncio.ensure_future(hold(tickets, name, order)) for name in "abc")
            await asyncio.sleep(0.5)
            # It ends in the same turn of the loop in which the second one leaves.
            first.cancel()
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            await third
        assert order == ["a", "c"] and counts(admission) == (0, 0)

    run_virtual(run())
