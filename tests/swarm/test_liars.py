"""Drafters that lie cannot change the text, and hardly the time."""

import asyncio
import math
import random
from collections.abc import Callable

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.liars import LIES, Liar, LiarRequest, Lie, no_such_token, silence
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol import messages as m
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import DRAFT
from cosine_protocol.request import Sampling
from tests.swarm.reference import (
    VOCAB_TOKENS,
    StallingRunner,
    assert_freed,
    draft_engine,
    in_a_swarm,
    plain_stream,
    prompt_of,
    target_engine,
)
from tests.thoroughness import quick_first, soak_rest

TOKENS = 96
PASS_S = VERIFY_CURVE.seconds(1)
PROMPT = prompt_of(random.Random("liars"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


def serving(lie: Lie, *, prompt_nll: float = 0.0) -> Callable[[Identity], StreamHandler]:
    def serve(identity: Identity) -> StreamHandler:
        return Liar(identity, lie, vocab_tokens=VOCAB_TOKENS, prompt_nll=prompt_nll).handle

    return serve


def ceaseless(identity: Identity) -> StreamHandler:
    """Sends drafts all the time, whatever is committed."""

    async def flood(channel: Channel, followed: LiarRequest, liar: Liar) -> None:
        for _ in range(1000):
            channel.post(liar.fragment(followed, liar.guesses()))
            await asyncio.sleep(0.1)

    async def handle(stream: Stream) -> None:
        floods: list[asyncio.Task[None]] = []
        liar = Liar(identity, silence, vocab_tokens=VOCAB_TOKENS)

        def receive(channel: Channel, message: m.Message) -> None:
            liar.receive(channel, message)
            if isinstance(message, m.Start):
                floods.append(asyncio.ensure_future(flood(channel, liar.requests[message.number], liar)))

        await serve_channel(stream, DRAFT, receive)
        for task in floods:
            task.cancel()

    return handle


async def generated(
    strategy: str, lies: list[Lie], *, honest: int = 0, one_way_s: float = 0.005, prompt_nll: float = 0.0
) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine())
        for lie in lies:
            await swarm.drafter_with(serving(lie, prompt_nll=prompt_nll), domain=lie.__name__)
        for number in range(honest):
            await swarm.drafter(draft_engine(0.9, number), domain=f"honest-{number}")
        client = await swarm.client(strategy=strategy)
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
        await assert_freed(swarm)
        return generation


@pytest.fixture(scope="module")
def plain_s() -> float:
    return run_virtual(generated("plain", [])).seconds


@pytest.mark.thorough
@pytest.mark.parametrize("one_way_s", soak_rest([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("name", LIES)
def test_a_liar_costs_at_most_two_percent_and_a_pass(name: str, one_way_s: float) -> None:
    plain = run_virtual(generated("plain", [], one_way_s=one_way_s))
    lied_to = run_virtual(generated("cosine", [LIES[name]], one_way_s=one_way_s))
    assert lied_to.token_ids == EXPECTED
    assert lied_to.seconds <= 1.02 * plain.seconds + PASS_S


def test_all_liars_together(plain_s: float) -> None:
    lied_to = run_virtual(generated("cosine", list(LIES.values())))
    assert lied_to.token_ids == EXPECTED
    assert lied_to.seconds <= 1.02 * plain_s + PASS_S


@pytest.mark.parametrize("prompt_nll", quick_first([0.0, math.log(VOCAB_TOKENS)]))
@pytest.mark.parametrize("name", quick_first(LIES, 3, checked=6))
def test_an_honest_drafter_beside_a_liar_still_helps(name: str, prompt_nll: float, plain_s: float) -> None:
    """A liar that claims to know the prompt by heart, or as well as an honest drafter does."""
    generation = run_virtual(generated("cosine", [LIES[name]], honest=1, prompt_nll=prompt_nll))
    assert generation.token_ids == EXPECTED
    assert generation.seconds < plain_s / 1.3


def test_tokens_outside_the_vocabulary() -> None:
    assert run_virtual(generated("cosine", [no_such_token])).token_ids == EXPECTED


@in_a_swarm
async def test_a_flood_does_not_hide_a_stalled_verifier(swarm: SimulatedSwarm) -> None:
    engine = target_engine()
    await swarm.verifier(engine, runner=StallingRunner(engine, passes=3))
    await swarm.drafter_with(ceaseless)
    client = await swarm.client(timeout_s=60.0)
    with pytest.raises(GenerationFailed, match="made no progress"):
        await client.generate(PROMPT, max_new_tokens=TOKENS)
