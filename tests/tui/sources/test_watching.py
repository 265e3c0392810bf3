"""Requests in a simulated swarm as the monitor follows them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from cosine_node.simulation.swarm import LetterCodec, SimulatedSwarm
from cosine_node.simulation.virtual_loop import run_virtual
from cosine_p2p.client import AsyncClient
from cosine_protocol.request import Sampling
from cosine_tui.feed import FRAMES_PER_S
from cosine_tui.notebook import Notebook
from cosine_tui.picture import EventKind, Picture, RequestState
from cosine_tui.request_log import Asked
from cosine_tui.sources.watching import Watching
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS = 48
PROMPT = prompt_of(random.Random("monitor"))
TEXT = LetterCodec().decode(plain_stream(PROMPT, Sampling(), tokens=TOKENS))
ASKED = Asked(prompt=PROMPT, strategy="cosine")

Use = Callable[[SimulatedSwarm, AsyncClient, Watching], Awaitable[Any]]


def watched(use: Use, *, verifiers: int = 2) -> Picture:
    """The last picture of a swarm in which `use` asked for something."""

    async def run() -> Picture:
        async with SimulatedSwarm() as swarm:
            for _ in range(verifiers):
                await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.9))
            watching = Watching(Notebook(title="test", target="zoo:target"))
            await use(swarm, await swarm.client(), watching)
            await watching.close()
            assert watching.is_idle
            return watching.picture()

    picture = run_virtual(run())
    assert isinstance(picture, Picture)
    return picture


def test_a_request_is_followed_to_its_end() -> None:
    async def use(_: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        await watching.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS, seed=5)

    (request,) = watched(use).requests
    assert (request.state, request.finish_reason, request.seed) == (RequestState.FINISHED, "length", 5)
    assert "".join(run.text for run in request.text) == TEXT
    assert request.tokens == TOKENS == request.own_tokens + sum(drafter.accepted for drafter in request.drafters)
    assert sum(request.passes) == TOKENS - request.own_tokens > 0
    assert len(request.passes) == request.rounds
    assert request.first_s is not None and request.why


def test_a_cancelled_request_keeps_its_text() -> None:
    async def use(_: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        task = watching.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS)
        await asyncio.sleep(0.5)
        watching.cancel(1)
        await asyncio.gather(task, return_exceptions=True)

    (request,) = watched(use).requests
    assert request.state is RequestState.CANCELLED and 0 < request.tokens < TOKENS


def test_a_verifier_that_dies_is_an_event_and_the_text_is_the_same() -> None:
    async def use(swarm: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        task = watching.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS)
        await asyncio.sleep(0.5)
        serving = watching.picture().requests[0].verifiers
        await next(member for member in swarm.members if member.identity.peer_id in serving).kill()
        await asyncio.sleep(0.2)
        watching.picture()
        await task

    picture = watched(use)
    assert [event.kind for event in picture.events] == [EventKind.FAILOVER]
    assert "".join(run.text for run in picture.requests[0].text) == TEXT


def test_without_a_verifier_the_request_fails_with_a_reason() -> None:
    async def use(swarm: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        await watching.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS)

    picture = watched(use, verifiers=0)
    assert picture.requests[0].state is RequestState.FAILED and "No verifier" in picture.requests[0].error
    assert [event.kind for event in picture.events] == [EventKind.FAILED]


def test_an_option_that_cannot_be_is_the_requests_error() -> None:
    async def use(_: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        await watching.begin(client, PROMPT, ASKED, max_new_tokens=0)
        watching.refuse(ASKED, "the swarm is not there")

    first, second = watched(use).requests
    assert first.error == "max_new_tokens must be 1 or more." and second.error == "the swarm is not there"


def test_however_much_happens_there_are_only_so_many_pictures_a_second() -> None:
    pictures: list[Picture] = []

    async def use(_: SimulatedSwarm, client: AsyncClient, watching: Watching) -> None:
        publishing = asyncio.ensure_future(watching.publish(pictures.append))
        await asyncio.gather(*(watching.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS) for _ in range(4)))
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)

    last = watched(use)
    assert len(pictures) <= FRAMES_PER_S * last.at_s + 1 < sum(request.tokens for request in last.requests)
