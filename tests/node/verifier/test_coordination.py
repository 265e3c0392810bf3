"""A verifier coordinates a request only for a valid mandate, and declines others with a reason."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.passes.runner import ServedEngine
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.coordination import KEEP_LINKS_S, RequestCoordinator
from cosine_node.verifier.service import VerifierService
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest
from cosine_protocol.draft import Mandate
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import Identity, sign
from cosine_protocol.request import Request
from cosine_protocol.stream import Account, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Cancel, Credit, Declined, Delegate, Open, Pacing, Revoke
from tests.node.peers import FLAT, SERVER, TARGET, TOKENIZER, Bench, Caller, request_of
from tests.scenes import as_test, in_virtual_time

DRAFTER = Identity.from_seed(bytes([9]) * 32)
CALLER = Identity.from_seed(bytes([100]) * 32)  # the first of a bench
QUICK = CostCurve(((1, 0.001), (64, 0.001)))
NOW_S = 5000.0
TOKENS = 60
Scene = Callable[[Bench, Caller, DrafterService], Awaitable[None]]


@in_virtual_time
async def play(scene: Scene, *, most_requests: int = 8) -> None:
    """Run a scene with a coordinating verifier, one drafter and one client, and check that nothing is left."""
    network = MemoryNetwork(one_way_s=0.001)
    transport, theirs = network.join(SERVER.peer_id), network.join(DRAFTER.peer_id)
    coordinator = RequestCoordinator(
        transport, most_requests=most_requests, offload=call_at_once, clock=lambda: NOW_S
    )
    engine, drafting = ScriptedEngine(), ScriptedEngine()
    verifier = VerifierService(
        ServedEngine(engine=engine, runner=InlineRunner(engine, FLAT), curve=FLAT),
        identity=SERVER,
        config=VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER),
        coordinator=coordinator,
    )
    drafter = DrafterService(
        ServedEngine(engine=drafting, runner=InlineRunner(drafting, QUICK), curve=QUICK),
        identity=DRAFTER,
        config=DrafterConfig(tokenizer_digest=TOKENIZER),
        clock=lambda: NOW_S,
    )
    await verifier.start(transport)
    await drafter.start(theirs)
    tasks = [asyncio.ensure_future(work) for work in (verifier.run(), drafter.run())]
    bench = Bench(verifier, engine, network, VERIFY, tasks[0])
    caller = await bench.caller()
    assert caller.peer_id == CALLER.peer_id
    await scene(bench, caller, drafter)
    await bench.hang_up(caller)
    await asyncio.sleep(KEEP_LINKS_S + 2.0)
    assert (verifier.requests, drafter.requests, coordinator.requests) == (0, 0, 0)
    assert drafter.counts.streams == 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()
    await theirs.close()


coordinating = as_test(play, given=3)


def delegate(request: Request, *, number: int = 1, d_0: bytes | None = None, **changes: Any) -> Delegate:
    fields: dict[str, Any] = {
        "delegate": SERVER.peer_id,
        "drafters": (DRAFTER.peer_id,),
        "most_tokens": TOKENS,
        "issued_at_s": NOW_S,
        "lifetime_s": 60.0,
    }
    return Delegate(number, sign(CALLER, Mandate(**fields | changes), digest=d_0 or request_digest(request)))


async def coordinated(caller: Caller, *, number: int = 1, pacing: Pacing = Pacing.FREE, **changes: Any) -> Request:
    """Open a request and delegate it by a mandate with changed fields."""
    request = request_of(CALLER.peer_id, max_new_tokens=TOKENS, nonce=bytes([number]) * 16)
    caller.post(Open(number, request, (), pacing, (DRAFTER.peer_id,)), delegate(request, number=number, **changes))
    return request


@pytest.mark.parametrize(
    ("changes", "pacing", "reason"),
    [
        ({"delegate": DRAFTER.peer_id}, Pacing.FREE, "for another peer"),
        ({"d_0": bytes(16)}, Pacing.FREE, "signature"),
        ({"issued_at_s": NOW_S - 61.0}, Pacing.FREE, "has ended"),
        ({"drafters": ()}, Pacing.FREE, "does not fit"),
        ({}, Pacing.PLAIN, "does not fit"),
    ],
    ids=["delegate", "request", "ended", "drafters", "plain"],
)
@coordinating
async def test_a_mandate_that_does_not_hold_is_declined_and_the_request_goes_on(
    bench: Bench, caller: Caller, drafter: DrafterService, changes: dict[str, Any], pacing: Pacing, reason: str
) -> None:
    await coordinated(caller, pacing=pacing, **changes)
    assert reason in (await caller.until(Declined)).message
    await caller.until(FinalMessage)
    assert drafter.counts.opened == 0


@as_test(partial(play, most_requests=1), given=3)
async def test_a_second_mandate_and_one_for_which_there_is_no_place_are_declined(
    bench: Bench, caller: Caller, drafter: DrafterService
) -> None:
    request = await coordinated(caller)
    caller.post(delegate(request))
    assert "had a mandate already" in (await caller.until(Declined, number=1)).message
    await coordinated(caller, number=2)
    assert "1 requests are coordinated" in (await caller.until(Declined, number=2)).message
    await caller.until(FinalMessage)


@pytest.mark.parametrize(
    ("message", "reason"), [(Revoke(1), FinishReason.LENGTH), (Cancel(1), FinishReason.CANCELLED)]
)
@coordinating
async def test_when_its_client_takes_it_back_or_leaves_the_drafter_is_let_go(
    bench: Bench, caller: Caller, drafter: DrafterService, message: Message, reason: FinishReason
) -> None:
    await coordinated(caller)
    await caller.until(Credit)
    assert drafter.requests == 1
    caller.post(message)
    await asyncio.sleep(0.1)
    assert drafter.requests == 0
    final = await caller.until(FinalMessage)
    assert decode_body(Account, final.body).reason == reason
    assert not any(isinstance(heard, Declined) for heard in caller.heard)
