"""Requests in a simulated swarm as the monitor follows them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.client import AsyncClient
from cosine_protocol.request import Sampling
from cosine_tui.sources.running_requests import RunningRequests
from cosine_tui.state.monitor_state import MonitorState
from cosine_tui.state.snapshot import EventKind, RequestDescription, RequestState, Snapshot
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS = 48
PROMPT = prompt_of(random.Random("monitor"))
TEXT = LetterCodec().decode(plain_stream(PROMPT, Sampling(), tokens=TOKENS))
ASKED = RequestDescription(prompt=PROMPT, strategy="cosine")

Use = Callable[[SimulatedSwarm, AsyncClient, RunningRequests], Awaitable[Any]]


def watched(use: Use) -> Snapshot:
    """Return the last snapshot of a swarm in which `use` sent requests."""

    async def run() -> Snapshot:
        async with SimulatedSwarm() as swarm:
            for _ in range(2):
                await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.9))
            requests = RunningRequests(MonitorState(title="test", target="zoo:target"))
            await use(swarm, await swarm.client(), requests)
            await requests.close()
            assert requests.is_idle
            return requests.snapshot()

    snapshot = run_virtual(run())
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_a_request_is_followed_to_its_end() -> None:
    async def use(_: SimulatedSwarm, client: AsyncClient, requests: RunningRequests) -> None:
        await requests.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS, seed=5)

    (request,) = watched(use).requests
    assert (request.state, request.seed) == (RequestState.FINISHED, 5)
    assert "".join(run.text for run in request.text) == TEXT
    own = sum(origin.tokens for origin in request.origins if origin.is_own)
    assert request.tokens == TOKENS == own + sum(drafter.accepted for drafter in request.drafters)
    assert sum(request.passes) == TOKENS - own > 0
    assert len(request.passes) == request.rounds
    assert request.first_s is not None and request.why and request.plain_per_s is not None
    assert [moment.text for moment in request.timeline][:1] == ["asked"]
    assert request.timeline[-1].text == "finished"
    account = request.account
    assert account is not None and account.finish_reason == "length"
    assert [(report.peer_id, report.tokens) for report in account.swarm.verifiers] == [
        (request.verifiers[0], TOKENS)
    ]
    assert (account.swarm.accepted, account.swarm.bytes_sent > 0) == (TOKENS - own, True)


def test_a_cancelled_request_keeps_its_text() -> None:
    async def use(_: SimulatedSwarm, client: AsyncClient, requests: RunningRequests) -> None:
        task = requests.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS)
        await asyncio.sleep(0.5)
        requests.cancel(1)
        await asyncio.gather(task, return_exceptions=True)

    (request,) = watched(use).requests
    assert request.state is RequestState.CANCELLED and 0 < request.tokens < TOKENS


def test_a_verifier_that_dies_is_an_event_and_the_text_is_the_same() -> None:
    async def use(swarm: SimulatedSwarm, client: AsyncClient, requests: RunningRequests) -> None:
        task = requests.begin(client, PROMPT, ASKED, max_new_tokens=TOKENS)
        await asyncio.sleep(0.5)
        serving = requests.snapshot().requests[0].verifiers
        await next(member for member in swarm.members if member.identity.peer_id in serving).kill()
        await asyncio.sleep(0.2)
        requests.snapshot()
        await task

    snapshot = watched(use)
    (event,) = snapshot.events
    assert event.kind is EventKind.FAILOVER and "was lost" in event.text and "goes on from token" in event.text
    assert "".join(run.text for run in snapshot.requests[0].text) == TEXT
