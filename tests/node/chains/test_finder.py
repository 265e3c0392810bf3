"""A head finds stages by their records, and avoids those that are unusable."""

import asyncio

import pytest

from cosine_node.chains.finder import MOST_ANSWER_S, STUCK_FACTOR, ChainFinder
from cosine_node.chains.links import ANSWER_S
from cosine_node.chains.search import NoChain
from cosine_node.stages.host import StageModel
from tests.node.chains.checked_heads import NAMES, Head, head_of, offered
from tests.scenes import in_real_time


@pytest.fixture
def models(halves: list[StageModel]) -> list[StageModel]:
    """The first half, and the second half twice."""
    return [*halves, halves[1]]


def chosen(head: Head) -> list[str]:
    assert head.finder.found is not None
    return [one.peer_id for one in head.finder.found.stages]


@in_real_time
async def test_who_announces_layers_that_it_does_not_hold_is_gone_round(models: list[StageModel]) -> None:
    async with head_of(models, holders=()) as head:
        for number in range(3):
            await head.announce(number)
        # One announces wrong layers, another one a wrong end, both as the fastest.
        await head.announce(1, pass_us=1, first_layer=0)
        liar = offered("stage 9", models[0], pass_us=1, end_layer=4)
        await head.directory.announce(liar, NAMES)
        await head.finder.open(first_sequence=0)
        assert chosen(head) == ["stage 0", "stage 2"]


@in_real_time
async def test_stages_of_one_data_type_make_a_chain(models: list[StageModel]) -> None:
    async with head_of(models, holders=()) as head:
        await head.announce(0)
        await head.announce(1, numerics="bfloat16", pass_us=1)
        with pytest.raises(NoChain, match="of one data type"):
            await head.finder.open(first_sequence=0)
        await head.announce(2)
        await head.finder.open(first_sequence=0)
        assert (chosen(head), head.finder.known.numerics) == (["stage 0", "stage 2"], "float32")


@in_real_time
async def test_a_stage_without_room_is_left_and_a_busy_one_asked_again(models: list[StageModel]) -> None:
    async with head_of(models, holders=()) as head:
        await head.announce(0)
        await head.announce(1, pool_tokens=16, pass_us=1)
        await head.announce(2)
        await head.finder.open(first_sequence=0)
        assert chosen(head) == ["stage 0", "stage 2"]
        other = ChainFinder(head.stages.network.join("other"), head.directory, head.finder.needs)
        opening = asyncio.ensure_future(other.open(first_sequence=0))
        await asyncio.sleep(0.1)
        assert not opening.done()
        await head.finder.close()
        chain = await opening
        assert not chain.lost.is_set()
        await other.close()


@in_real_time
async def test_an_answer_is_waited_for_as_long_as_the_stages_say_that_a_pass_takes(
    models: list[StageModel],
) -> None:
    async with head_of(models, holders=()) as head:
        finder = head.finder
        await head.announce(0)
        await head.announce(1)
        await finder.open(first_sequence=0)
        assert finder.found is not None and finder.watch.answer_s(finder.found, 64) == ANSWER_S
        for number in range(2):
            await head.announce(number, pass_us=6_000_000, wide_pass_us=16_000_000)
        await finder._look()
        await finder.open(first_sequence=1)
        assert finder.watch.answer_s(finder.found, 1) == pytest.approx(STUCK_FACTOR * (6 + 6))
        assert finder.watch.answer_s(finder.found, 64) == pytest.approx(STUCK_FACTOR * (16 + 16))
        assert finder.watch.answer_s(finder.found, 100_000) == MOST_ANSWER_S
