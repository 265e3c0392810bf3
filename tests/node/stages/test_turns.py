"""Chains take turns that are counted in steps, so that each waits for a bounded time."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.stages.inbox import TURN_STEPS, Turn
from tests.scenes import in_virtual_time

STEPS = st.lists(st.integers(1, 5 * TURN_STEPS), min_size=1, max_size=30)


@given(st.lists(STEPS, min_size=2, max_size=4))
@in_virtual_time
async def test_nobody_gets_more_than_a_turn_and_an_operation_ahead_of_another_that_has_work(
    works: list[list[int]],
) -> None:
    done = [0] * len(works)

    async def work(number: int, operations: list[int]) -> None:
        turn = Turn()
        for steps in operations:
            done[number] += steps
            busy = [each for each, all_steps in zip(done, works, strict=True) if each < sum(all_steps)]
            assert done[number] - min(busy, default=done[number]) <= 2 * (TURN_STEPS + max(map(max, works)))
            await turn.spend(steps)

    await asyncio.gather(*(work(*each) for each in enumerate(works)))
