"""A head finds stages by their records, goes round those that failed, and says which layers nobody holds."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_node.chains.remote_chain import ANSWER_S, RemoteChain
from cosine_node.chains.search import NoChain
from cosine_node.chains.source import MOST_ANSWER_S, OPEN_S, STUCK_FACTOR, ChainNeeds, ChainSource
from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.stages.engine import StageModel
from cosine_protocol.records import NodeRecord, Role, StageOffer
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import VOCAB
from tests.node.stages.chains import POOL_TOKENS, TARGET, ServedStages, head_of, in_loop, served
from tests.protocol.samples import record_of

NAMES = (TARGET.hex(),)


@pytest.fixture
def models(halves: list[StageModel]) -> list[StageModel]:
    """The first half, the second half, the second half again."""
    return [*halves, halves[1]]


def offered(peer_id: str, model: StageModel, **changes: Any) -> NodeRecord:
    layers = model.layers
    offer: dict[str, Any] = {
        "first_layer": layers.first,
        "end_layer": layers.end,
        "layers": layers.layers,
        "wide_tokens": 64,
        "wide_pass_us": 20_000,
        "busy_permille": 0,
        "pool_tokens": POOL_TOKENS,
    }
    fields = {"pass_us": 1000 + int(peer_id[-1])} | changes
    asked = {name: fields.pop(name) for name in list(fields) if name in offer}
    return record_of(
        peer_id=peer_id, role=Role.STAGE, target_digest=TARGET, stage=StageOffer(**(offer | asked)), **fields
    )


class Swarm:
    """A head among stages, with what they announce."""

    def __init__(self, stages: ServedStages, *, pool_tokens: int = 96) -> None:
        self.stages = stages
        self.directory = MemoryDirectory()
        needs = ChainNeeds(
            target_digest=TARGET, layers=4, vocab_tokens=VOCAB, pool_tokens=pool_tokens, least_pool_tokens=32
        )
        self.source = ChainSource(stages.network.join("head"), self.directory, needs)

    async def announce(self, number: int, **changes: Any) -> None:
        record = offered(f"stage {number}", self.stages.models[number], **changes)
        await self.directory.announce(record, NAMES)

    def chosen(self) -> list[str]:
        assert self.source.found is not None
        return [one.place.peer_id for one in self.source.found.stages]

    async def kill(self, number: int) -> None:
        await self.stages.network.transports[f"stage {number}"].close()


@asynccontextmanager
async def swarm_of(models: Sequence[StageModel], **options: Any) -> AsyncIterator[Swarm]:
    async with served(models) as stages:
        swarm = Swarm(stages, **options)
        try:
            yield swarm
        finally:
            await swarm.source.close()


async def first_token(chain: RemoteChain, *, first_sequence: int) -> int:
    engine = head_of(chain, first_sequence=first_sequence)

    def ask() -> int:
        sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
        return engine.forward([Row.chain(sequence, (3, 4, 5), scored_from=2)])[0].choices[0].token

    return await asyncio.get_running_loop().run_in_executor(None, ask)


@in_loop
async def test_a_lost_stage_is_replaced_and_gives_the_same_token(models: list[StageModel]) -> None:
    async with swarm_of(models, pool_tokens=1000) as swarm:
        for number in range(3):
            await swarm.announce(number)
        chain = await swarm.source.open(first_sequence=0)
        assert swarm.chosen() == ["stage 0", "stage 1"]
        # As much as the stages have, but for a second chain's part.
        assert swarm.source.pool_tokens == 112 == POOL_TOKENS * 3 // 4 // PAGE_TOKENS * PAGE_TOKENS
        expected = await first_token(chain, first_sequence=0)
        await swarm.kill(1)
        await chain.lost.wait()
        assert chain.failed_peer == "stage 1"
        chain = await swarm.source.open(first_sequence=1)
        assert swarm.chosen() == ["stage 0", "stage 2"]
        assert await first_token(chain, first_sequence=1) == expected


@in_loop
async def test_without_a_spare_the_layers_are_named_soon(models: list[StageModel]) -> None:
    async with swarm_of(models[:2]) as swarm:
        with pytest.raises(NoChain, match=r"^Layers 0:4 of 4 are held by nobody\.$"):
            await swarm.source.open(first_sequence=0)
        await swarm.announce(0)
        with pytest.raises(NoChain, match=r"^Layers 2:4 of 4 are held by nobody\.$"):
            await swarm.source.open(first_sequence=0)
        await swarm.announce(1)
        chain = await swarm.source.open(first_sequence=0)
        await swarm.kill(0)
        await chain.lost.wait()
        began_s = asyncio.get_running_loop().time()
        # Its record lives on.
        with pytest.raises(NoChain, match=r"^Layers 0:2 of 4 are held by nobody\.$"):
            await swarm.source.open(first_sequence=1)
        assert asyncio.get_running_loop().time() - began_s < OPEN_S + 1


@in_loop
async def test_who_announces_layers_that_it_does_not_hold_is_gone_round(models: list[StageModel]) -> None:
    async with swarm_of(models) as swarm:
        for number in range(3):
            await swarm.announce(number)
        # Says to be fast, and to hold other layers than it does; another says to be of another target.
        await swarm.announce(1, pass_us=1, first_layer=0)
        liar = offered("stage 9", models[0], pass_us=1, end_layer=4)
        await swarm.directory.announce(liar, NAMES)
        await swarm.source.open(first_sequence=0)
        assert swarm.chosen() == ["stage 0", "stage 2"]


@in_loop
async def test_stages_of_one_data_type_make_a_chain(models: list[StageModel]) -> None:
    async with swarm_of(models) as swarm:
        await swarm.announce(0)
        await swarm.announce(1, numerics="bfloat16", pass_us=1)
        with pytest.raises(NoChain, match="of one data type"):
            await swarm.source.open(first_sequence=0)
        await swarm.announce(2)
        await swarm.source.open(first_sequence=0)
        assert (swarm.chosen(), swarm.source.numerics) == (["stage 0", "stage 2"], "float32")


@in_loop
async def test_a_stage_without_room_is_left_and_a_busy_one_asked_again(models: list[StageModel]) -> None:
    async with swarm_of(models) as swarm:
        await swarm.announce(0)
        await swarm.announce(1, pool_tokens=16, pass_us=1)
        await swarm.announce(2)
        await swarm.source.open(first_sequence=0)
        assert swarm.chosen() == ["stage 0", "stage 2"]
        other = ChainSource(swarm.stages.network.join("other"), swarm.directory, swarm.source._needs)
        opening = asyncio.ensure_future(other.open(first_sequence=0))
        await asyncio.sleep(0.1)
        assert not opening.done()
        # The slots of the first head's chain are the second's.
        await swarm.source.close()
        chain = await opening
        assert not chain.lost.is_set()
        await other.close()


@in_loop
async def test_a_stage_whose_passes_seemed_to_take_no_time_takes_what_it_announces(
    models: list[StageModel],
) -> None:
    """Costs of passes are divided by each other."""
    async with swarm_of(models) as swarm:
        await swarm.announce(0)
        await swarm.announce(1)
        swarm.source._speeds.note("stage 0", pass_s=0.0, expected_s=0.001, now_s=0.0)
        await swarm.source.open(first_sequence=0)
        assert swarm.source.found is not None
        assert [stage.pass_s for stage in swarm.source.found.stages] == [0.001, 0.00100 + 1e-6]


@in_loop
async def test_an_answer_is_waited_for_as_long_as_the_stages_say_that_a_pass_takes(
    models: list[StageModel],
) -> None:
    async with swarm_of(models) as swarm:
        source = swarm.source
        await swarm.announce(0)
        await swarm.announce(1)
        await source.open(first_sequence=0)
        assert source.found is not None and source.answer_s(source.found, 64) == ANSWER_S
        for number in range(2):
            await swarm.announce(number, pass_us=6_000_000, wide_pass_us=16_000_000)
        await source._look()
        await source.open(first_sequence=1)
        assert source.answer_s(source.found, 1) == pytest.approx(STUCK_FACTOR * (6 + 6))
        assert source.answer_s(source.found, 64) == pytest.approx(STUCK_FACTOR * (16 + 16))
        # Whoever says that it takes for ever holds nobody up for ever.
        assert source.answer_s(source.found, 100_000) == MOST_ANSWER_S
