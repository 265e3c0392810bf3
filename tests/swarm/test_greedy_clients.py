"""One client that wants everything: others get their share at once, and every text is the target's."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import pytest

from cosine_lab.simulation.records import DIGEST
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm, numbered_identity
from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.fair_pass import CROWD
from cosine_node.passes.fair_places import IDLE_WANTED_S
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import GenerationFailed, PeerLost
from cosine_protocol.protocols import VERIFY
from cosine_protocol.request import Sampling
from tests.node.peers import request_of
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS: Final = 40
BY_THE_TOKEN: Final = CostCurve(((1, 0.060), (64, 64 * 0.060)))
PROMPT: Final = prompt_of(random.Random("greedy"))
EXPECTED: Final = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


async def take_all(client: AsyncClient, requests: int) -> None:
    """Ask for long texts, all at once and again and again."""

    async def keep_asking() -> None:
        while True:
            try:
                await client.generate(PROMPT, max_new_tokens=2000)
            except GenerationFailed:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(keep_asking() for _ in range(requests)))


def generated(*, greedy: int, strategy: str = "plain", curve: CostCurve = VERIFY_CURVE) -> list[Generation]:
    """Texts of a modest client beside one with so many requests."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine(), max_requests=8, curve=curve)
            await swarm.drafter(draft_engine(0.9), max_requests=8)
            crowd = await swarm.client(strategy=strategy, timeout_s=3600.0)
            modest = await swarm.client(strategy=strategy, timeout_s=60.0)
            taking = asyncio.ensure_future(take_all(crowd, greedy))
            await asyncio.sleep(1.0)
            texts = [await modest.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(3)]
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            return texts

    return run_virtual(run())


@pytest.mark.parametrize("greedy", [8, 200])
def test_a_modest_client_is_served_at_once(greedy: int) -> None:
    [quiet, *_] = generated(greedy=0)
    for generation in generated(greedy=greedy):
        assert generation.token_ids == EXPECTED
        assert generation.seconds < CROWD * quiet.seconds


def test_a_modest_client_has_its_share_of_passes_that_cost_by_the_token() -> None:
    """Where a row more takes as long as the first, half of each pass; its prompt has half of those over prompts."""
    [quiet, *_] = generated(greedy=0, curve=BY_THE_TOKEN)
    first, *later = generated(greedy=200, curve=BY_THE_TOKEN)
    assert first.token_ids == EXPECTED and first.seconds < 3 * quiet.seconds
    for generation in later:
        assert generation.token_ids == EXPECTED and generation.seconds < 2.1 * quiet.seconds


@pytest.mark.parametrize("clients", [1, 16])
def test_places_held_for_nothing_are_given_to_who_works(clients: int) -> None:
    """Sixteen stepped requests, of one client or of as many, that only send heartbeats."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine(), max_requests=16)
            async with AsyncExitStack() as stack:
                for number in range(clients):
                    identity = numbered_identity(9500 + number)
                    stream = await swarm.join(identity).dial(verifier.identity.peer_id, VERIFY)
                    channel = await stack.enter_async_context(Channel(stream, VERIFY))
                    listening = asyncio.ensure_future(listen(channel))
                    stack.callback(listening.cancel)
                    for place in range(16 // clients):
                        request = replace(
                            request_of(identity.peer_id, max_new_tokens=2000),
                            target_digest=swarm.facts.digest(),
                            tokenizer_digest=DIGEST,
                        )
                        assert channel.post(m.Open(place + 1, request, (), m.Pacing.STEPPED, ()))
                await asyncio.sleep(IDLE_WANTED_S + 1.0)
                assert verifier.service.requests == 16
                modest = await swarm.client(strategy="plain", timeout_s=60.0)
                return [await modest.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(3)]

    [quiet, *_] = generated(greedy=0)
    for generation in run_virtual(run()):
        assert generation.token_ids == EXPECTED
        assert generation.seconds < 2 * quiet.seconds


async def listen(channel: Channel) -> None:
    """Answer heartbeats, and act on nothing."""
    try:
        while True:
            await channel.receive()
    except PeerLost:
        return


def test_it_gets_drafts_too() -> None:
    [quiet, *_] = generated(greedy=0, strategy="cosine")
    for generation in generated(greedy=8, strategy="cosine"):
        assert generation.token_ids == EXPECTED
        assert generation.accepted > 0
        assert generation.seconds < CROWD * quiet.seconds
