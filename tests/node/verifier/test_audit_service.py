"""Audits beside a verifier's requests: answered in its passes, bounded, and nobody's burden."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.passes.runner import InlineRunner
from cosine_node.verifier.audit_service import AHEAD_S, MAX_AUDITS, TOKENS_PER_S, AuditService
from cosine_node.verifier.service import VerifierConfig, VerifierService
from cosine_protocol import messages as m
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import ErrorCode
from cosine_protocol.identity import Identity
from cosine_protocol.messages import AskAudit, Audited, AuditVerdict, Transcript
from cosine_protocol.protocols import AUDIT, VERIFY
from cosine_protocol.statements import open_verdict, sign_transcript
from tests.node.peers import FLAT, SERVER, TARGET, TOKENIZER, Bench, Caller, expected_output, request_of, serving

AUTHOR = Identity.from_seed(bytes([8]) * 32)
Scene = Callable[[Bench, Caller], Awaitable[None]]


def claim_of(number: int = 1, *, prompt_tokens: int = 3, tokens: int = 40, lies_at: int | None = None) -> AskAudit:
    """A stream of the scripted target as `AUTHOR` signed it."""
    request = request_of("some client", prompt=(1, 2, 3) * (prompt_tokens // 3), max_new_tokens=tokens)
    output = list(expected_output(request, ScriptedEngine()))
    if lies_at is not None:
        output[lies_at] = (output[lies_at] + 1) % 16
    d_0 = request_digest(request)
    transcript = Transcript(0, tokens, roll_digest(d_0, output))
    return AskAudit(number, request, tuple(output), AUTHOR.peer_id, sign_transcript(AUTHOR, transcript, d_0=d_0))


async def verdict_of(caller: Caller, claim: AskAudit) -> AuditVerdict:
    caller.post(claim)
    answer = await caller.until(Audited, number=claim.number)
    return open_verdict(answer, auditor=SERVER.peer_id, claim=claim)


async def refusal(caller: Caller, claim: AskAudit) -> m.Error:
    caller.post(claim)
    return await caller.until(m.Error, number=claim.number)


def play(scene: Scene, *, engine: ScriptedEngine | None = None, **config: Any) -> None:
    """Run a scene with one caller that asks for audits; afterwards nothing is left."""

    async def run() -> None:
        used = engine or ScriptedEngine()
        service = VerifierService(
            engine=used,
            runner=InlineRunner(used, FLAT),
            curve=FLAT,
            identity=SERVER,
            config=VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER, **config),
        )
        assert isinstance(service.audits, AuditService)
        async with serving(service, used, AUDIT) as bench:
            await scene(bench, await bench.caller())
            for caller in list(bench.callers):
                await bench.hang_up(caller)
            await asyncio.sleep(1.0)
            assert (service.requests, used.open_sequences, used.live_tokens) == (0, 0, 0)

    run_virtual(run())


def test_an_honest_stream_is_equal_and_a_lie_is_found() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        assert (await verdict_of(caller, claim_of(1))).equal == 40
        lie = await verdict_of(caller, claim_of(2, lies_at=39))
        assert (lie.equal, lie.different) == (39, 1)
        assert bench.service.counts.ended == {"audited": 2} and bench.service.counts.audited_tokens == 80

    play(scene)


def test_a_long_audit_is_fed_in_pieces_and_beside_a_request_that_decodes() -> None:
    """The request needs a pass for each of its tokens, and gets them as fast as alone."""

    async def scene(bench: Bench, caller: Caller) -> None:
        bench.protocol = VERIFY
        client = await bench.caller()
        request = request_of(client.peer_id, max_new_tokens=30)
        client.post(m.Open(1, request, (), m.Pacing.PLAIN, ()))
        began_s = asyncio.get_running_loop().time()
        judging = asyncio.ensure_future(verdict_of(caller, claim_of(prompt_tokens=300, tokens=200)))
        await client.until(m.Final)
        assert asyncio.get_running_loop().time() - began_s < 30 * FLAT.seconds(64) * 1.2
        assert (await judging).equal == 200

    play(scene)


def test_no_more_than_so_many_are_under_way_and_one_of_each_peer() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        caller.post(claim_of(1, tokens=400))
        busy = await refusal(caller, claim_of(2))
        assert (busy.code, busy.retry_after_s) == (ErrorCode.OVERLOADED, 2.0)
        others = [await bench.caller() for _ in range(MAX_AUDITS)]
        for other in others[:-1]:
            other.post(claim_of(1, tokens=400))
        assert (await refusal(others[-1], claim_of(1))).code == ErrorCode.OVERLOADED

    play(scene)


def test_a_peer_that_asks_for_too_much_is_told_when_to_come_back() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        asked = 0
        while asked <= 1.1 * AHEAD_S * TOKENS_PER_S:
            asked += 1503
            await verdict_of(caller, claim_of(asked, prompt_tokens=1500, tokens=3))
        told = await refusal(caller, claim_of(asked + 1))
        assert told.code == ErrorCode.OVERLOADED and told.retry_after_s is not None
        assert 0 < told.retry_after_s < AHEAD_S

    play(scene, engine=ScriptedEngine(context_tokens=4096, pool_tokens=8192))


def test_whoever_comes_takes_the_place_of_an_audit() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        caller.post(claim_of(1, tokens=400))
        await caller.hear_for(0.005)
        bench.protocol = VERIFY
        client = await bench.caller()
        client.post(m.Open(1, request_of(client.peer_id), (), m.Pacing.PLAIN, ()))
        await client.until(m.Opened)
        assert (await caller.until(m.Error)).code == ErrorCode.OVERLOADED
        assert (await refusal(caller, claim_of(2))).code == ErrorCode.OVERLOADED
        await client.until(m.Final)

    play(scene, max_requests=1)


def test_an_audit_ends_with_its_stream_and_with_the_node() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        other = await bench.caller()
        other.post(claim_of(1, tokens=400))
        await other.hear_for(0.005)
        assert bench.service.requests == 1
        await bench.hang_up(other)
        await asyncio.sleep(0.1)
        assert bench.service.requests == 0
        await bench.service.drain()
        assert (await refusal(caller, claim_of(2))).code == ErrorCode.SHUTTING_DOWN

    play(scene)


@pytest.mark.parametrize("message", [m.Cancel(1), m.AskStatus(1)])
def test_nothing_else_belongs_on_the_stream(message: m.Message) -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        caller.post(message)
        assert (await caller.until(m.Error)).code == ErrorCode.MALFORMED

    play(scene)
