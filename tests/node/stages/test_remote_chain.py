"""A head over streams to stages gives the whole model's tokens, and says which layers are lost when one is."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosine_node.engine.base import Row
from cosine_node.stages.engine import StageModel
from cosine_node.stages.operations import ChainLost
from cosine_node.stages.remote_chain import open_chain
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.protocols import STAGE
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import FeedPass, Join, Joined, Results
from tests.node.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.node.engine.staged import load_untried, ranges, whole_engine
from tests.node.engine.tiny_models import VOCAB
from tests.node.stages.chains import POOL_TOKENS, ServedStages, head_of, save_tiny, served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def stages(folder: Path) -> list[StageModel]:
    return load_untried(folder, ranges(1, 3, 4), slots=POOL_TOKENS)


async def off_loop(work: Callable[[], Any]) -> Any:
    """As a verifier runs its engine."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # the services tell nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ends", [(2, 4), (1, 3, 4)], ids=str)
def test_requests_over_streams_are_those_of_the_whole_model(folder: Path, ends: tuple[int, ...]) -> None:
    models = load_untried(folder, ranges(*ends), slots=POOL_TOKENS)
    whole = whole_engine(folder, pool_tokens=POOL_TOKENS)
    requests = draw_requests(4, vocab_tokens=VOCAB, longest=40, seed=3)
    for asked in requests:
        asked.expected = serve_alone(whole, asked, 5)

    async def run() -> None:
        async with served(models) as stages:
            head = stages.network.join("head")
            async with open_chain(head, stages.plan(first_sequence=7)) as chain:
                engine = head_of(chain, first_sequence=7)
                for asked in requests:
                    # Margins are equal to the last bit.
                    assert await off_loop(partial(serve_alone, engine, asked, 5)) == asked.expected
                different = await off_loop(
                    lambda: serve_together(engine, requests, at_once=3, seed=5, tolerance=1e-4)
                )
                assert different == 0 and engine.open_sequences == 0
                assert not chain.lost.is_set()
            await until(lambda: stages.is_idle)

    asyncio.run(run())


async def play_death(stages: ServedStages, kill: Callable[[], Awaitable[None]], said: str) -> None:
    head = stages.network.join("head")
    async with open_chain(head, stages.plan()) as chain:
        engine = head_of(chain)
        sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
        row = Row.chain(sequence, (3, 4, 5))
        await off_loop(lambda: engine.forward([row]))
        engine.keep(sequence, row.nodes)
        await kill()
        await chain.lost.wait()
        for _ in range(2):
            with pytest.raises(ChainLost, match=said):
                await off_loop(lambda: engine.forward([Row.chain(sequence, (6,))]))
            assert engine.live_tokens == 3
        engine.release(sequence)
    await until(lambda: stages.is_idle)
    await head.close()


@pytest.mark.parametrize(("number", "layers"), [(0, "0:1"), (1, "1:3"), (2, "3:4")])
def test_a_stage_that_dies_is_named_by_its_layers(stages: list[StageModel], number: int, layers: str) -> None:
    async def run() -> None:
        async with served(stages) as swarm:

            async def kill() -> None:
                await swarm.network.transports[f"stage {number}"].close()

            await play_death(swarm, kill, f"^Layers {layers} at stage {number}: the stream ended")

    asyncio.run(run())


def test_a_request_goes_on_over_another_chain_with_the_same_text(folder: Path, stages: list[StageModel]) -> None:
    whole = whole_engine(folder, pool_tokens=POOL_TOKENS)
    [asked] = draw_requests(1, vocab_tokens=VOCAB, longest=20, seed=4)
    assert asked.sampling.is_greedy
    expected = serve_alone(whole, asked, 8)

    async def run() -> None:
        async with served(stages) as swarm:
            head = swarm.network.join("head")
            async with open_chain(head, swarm.plan()) as chain:
                engine = head_of(chain)
                assert await off_loop(lambda: serve_alone(engine, asked, 3)) == expected[:3]
                first = engine.open(sampling=Sampling(), prompt_tokens=1)
            await until(lambda: swarm.is_idle)
            async with open_chain(head, swarm.plan(first_sequence=first)) as chain:
                engine = head_of(chain, first_sequence=first)
                asked.prompt += [token for token, _ in expected[:3]]
                found = await off_loop(lambda: serve_alone(engine, asked, 5))
                assert [token for token, _ in found] == [token for token, _ in expected[3:]]

    asyncio.run(run())


def test_no_chain_over_stages_that_refuse_or_are_not_there(stages: list[StageModel]) -> None:
    async def run() -> None:
        async with served(stages) as swarm:
            head = swarm.network.join("head")
            with pytest.raises(LocalProtocolError, match="do not hold all layers"):
                swarm.plan(skip=1)
            with pytest.raises(ChainLost, match=r"^Layers 3:4 at stage 2: layers 3:4: layers of another target"):
                async with open_chain(head, replace(swarm.plan(), target_digest=bytes(32))):
                    pass
            async with open_chain(head, swarm.plan()):
                with pytest.raises(ChainLost, match=r"Layers 3:4 at stage 2: .*may have 160 token slots, not 320"):
                    async with open_chain(head, swarm.plan()):
                        pass
            await until(lambda: swarm.is_idle)
            await swarm.network.transports["stage 1"].close()
            with pytest.raises(ChainLost, match=r"Layers 1:3 at stage 1: .*no such peer"):
                async with open_chain(head, swarm.plan()):
                    pass
            await until(lambda: swarm.is_idle)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Results(5, ()), "an answer to pass 5, not 0"),
        (Results(0, ()), "0 results for 1 rows"),
        (Joined(bytes(16)), "unexpected Joined"),
        (None, "No stage has answered a pass for 0.2 s"),
    ],
    ids=str,
)
def test_a_last_stage_that_answers_nonsense_or_nothing_loses_the_chain(answer: Any, said: str) -> None:
    async def lie(stream: Any) -> None:
        async with Channel(stream, STAGE) as channel:
            join = await channel.receive()
            assert isinstance(join, Join)
            channel.post(Joined(join.chain))
            while True:
                if isinstance(await channel.receive(), FeedPass) and answer is not None:
                    channel.post(answer)

    async def run() -> None:
        async with served([]) as swarm:
            await swarm.network.join("stage 0").serve(STAGE, lie)
            head = swarm.network.join("head")
            [model] = [type("Whole", (), {"layers": ranges(4)[0]})()]
            swarm.models = [model]
            async with open_chain(head, swarm.plan(), answer_s=0.2) as chain:
                engine = head_of(chain)

                def ask() -> None:
                    engine.forward([Row.chain(engine.open(sampling=Sampling(), prompt_tokens=1), (3,))])

                with pytest.raises(ChainLost, match=said):
                    await off_loop(ask)
                assert engine.live_tokens == 0
            await swarm.network.transports["stage 0"].close()

    asyncio.run(run())
