"""Tests of peers that vanish, stall or refuse."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from enum import Enum, auto

import pytest

from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.client import AsyncClient
from cosine_p2p.session.stall import STALL_S
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from cosine_protocol.verify import VERIFY, Open
from tests.swarm.reference import (
    StallingRunner,
    assert_freed,
    draft_engine,
    greedy_text,
    in_a_swarm,
    plain_stream,
    target_engine,
)
from tests.thoroughness import quick_first, quick_rows

TOKENS = 40
PROMPT, EXPECTED = greedy_text("faults", TOKENS)
CLIENT = numbered_identity(9500)
BOTH = pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))


async def later(delay_s: float, act: Callable[[], Coroutine[None, None, None]]) -> None:
    await asyncio.sleep(delay_s)
    await act()


async def streamed(client: AsyncClient, tokens: int = TOKENS) -> tuple[int, ...]:
    ids: list[int] = []
    async for chunk in client.stream(PROMPT, max_new_tokens=tokens):
        ids += chunk.token_ids
    return tuple(ids)


@BOTH
@pytest.mark.parametrize("after_s", quick_first([0.2, 0.0, 0.03, 0.5]))
@in_a_swarm
async def test_a_second_verifier_continues_the_stream(swarm: SimulatedSwarm, strategy: str, after_s: float) -> None:
    first = await swarm.verifier(target_engine())
    await swarm.verifier(target_engine())
    await swarm.drafter(draft_engine(0.8))
    client = await swarm.client(strategy=strategy)
    kill = asyncio.ensure_future(later(after_s, first.kill))
    assert await streamed(client) == EXPECTED
    await kill
    await assert_freed(swarm)


@pytest.mark.parametrize("passes", [None, 0, 5])
@in_a_swarm
async def test_the_only_verifier_vanishes_or_stalls(swarm: SimulatedSwarm, passes: int | None) -> None:
    engine = target_engine()
    runner = None if passes is None else StallingRunner(engine, passes=passes)
    only = await swarm.verifier(engine, runner=runner)
    await swarm.drafter(draft_engine(0.8))
    client = await swarm.client()
    kill = asyncio.ensure_future(later(0.3, only.kill)) if passes is None else None
    reason = only.identity.peer_id + ("" if passes is None else " was lost: it made no progress")
    with pytest.raises(GenerationFailed, match=reason):
        await client.generate(PROMPT, max_new_tokens=TOKENS)
    assert kill is None or kill.done()
    assert asyncio.get_running_loop().time() < 10


@pytest.mark.parametrize("is_first", quick_first([True, False]))
@pytest.mark.parametrize(("strategy", "from_s"), quick_rows([("plain", 0.5), ("plain", 0.0), ("cosine", 0.5)]))
@in_a_swarm
async def test_two_verifiers_that_stall_in_turn_finish_a_text(
    swarm: SimulatedSwarm, strategy: str, from_s: float, is_first: bool
) -> None:
    for is_early in (is_first, not is_first):
        at_s = from_s if is_early else from_s + STALL_S + 1.5
        verifier = await swarm.verifier(target_engine())
        stands = verifier.machine, "stalled_until_s", at_s + STALL_S + 1.5
        asyncio.get_running_loop().call_later(at_s, setattr, *stands)
    await swarm.drafter(draft_engine(0.8))
    client = await swarm.client(strategy=strategy)
    assert await streamed(client, tokens=100) == plain_stream(PROMPT, Sampling(), tokens=100)
    await assert_freed(swarm)


@in_a_swarm
async def test_a_sole_verifier_whose_daemon_dies_before_opening_is_asked_again(swarm: SimulatedSwarm) -> None:
    verifier = await swarm.verifier(target_engine())
    ended = 0

    async def handle(stream: Stream) -> None:
        nonlocal ended
        if ended:
            return await verifier.service.handle(stream)
        async with Channel(stream, VERIFY) as channel:
            ended += isinstance(await channel.receive(), Open)

    await verifier.transport.serve(VERIFY, handle)
    assert await streamed(await swarm.client(strategy="plain")) == EXPECTED
    assert ended


class Leaving(Enum):
    STOPS_READING = auto()
    VANISHES = auto()
    IS_CANCELLED = auto()


@pytest.mark.parametrize("leaving", Leaving)
@in_a_swarm
async def test_a_client_that_leaves_its_request_frees_everything(swarm: SimulatedSwarm, leaving: Leaving) -> None:
    await swarm.verifier(target_engine())
    await swarm.drafter(draft_engine(0.8))
    client = await swarm.client(identity=CLIENT)
    if leaving is Leaving.STOPS_READING:
        async with aclosing(client.stream(PROMPT, max_new_tokens=1000)) as chunks:
            async for _ in chunks:
                break
        return await assert_freed(swarm)
    running = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=1000))
    await asyncio.sleep(0.7)
    assert not running.done()
    if leaving is Leaving.VANISHES:
        swarm.network.transports[CLIENT.peer_id].vanish()
        await assert_freed(swarm)
        with pytest.raises(GenerationFailed):
            await running
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await assert_freed(swarm)


@in_a_swarm
async def test_with_every_place_taken_a_request_waits_or_fails_at_its_timeout(swarm: SimulatedSwarm) -> None:
    only = await swarm.verifier(target_engine(), max_requests=1)
    client = await swarm.client(strategy="plain")
    hasty = await swarm.client(strategy="plain", timeout_s=1.0)
    first = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=TOKENS))
    await asyncio.sleep(0.3)
    with pytest.raises(GenerationFailed, match=f"{only.identity.peer_id} had no place for the request"):
        await hasty.generate(PROMPT, max_new_tokens=TOKENS)
    assert (await client.generate(PROMPT, max_new_tokens=TOKENS)).token_ids == EXPECTED
    assert (await first).token_ids == EXPECTED
    await assert_freed(swarm)
