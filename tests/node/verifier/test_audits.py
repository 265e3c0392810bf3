"""Audits: a replay compares every position once, for any chunking, within limits, without delaying requests."""

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.verifier.audited_stream import AuditedStream, Nobody, feed
from cosine_node.verifier.audits import AHEAD_S, MAX_AUDITS, MAX_WAIT_S, TOKENS_PER_S
from cosine_node.verifier.served_request import SCORED_TOKENS
from cosine_node.verifier.service import VerifierService
from cosine_p2p.fair_places import MAX_WAITING
from cosine_protocol.audit import AUDIT, AskAudit, Audited, AuditVerdict, open_verdict
from cosine_protocol.errors import ErrorCode
from cosine_protocol.identity import Identity
from cosine_protocol.request import Request, Sampling
from cosine_protocol.stream import Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Open, Opened, Pacing
from tests.node.peers import FLAT, SERVER, Bench, Caller, expected_output, played, request_of
from tests.node.verifier.replaying import claim_of
from tests.node.verifier.test_service import play, refusal

TOKENS = 70
SAMPLED = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.2, seed=5)


def replayed(
    request: Request, tokens: tuple[int, ...], *, first: int = 0, chunk: int = 512, preempted: bool = False
) -> AuditVerdict:
    """The verdict on a stream that `SERVER` signed, with at most `chunk` tokens a pass."""
    engine = ScriptedEngine()
    claim = claim_of(request, tokens, first=first)
    stream = AuditedStream.of(claim, Nobody(request.client), engine=engine, first=first, auditor=SERVER)
    while not stream.is_compared:
        before = engine.live_tokens
        feed(engine, stream, chunk)
        assert engine.live_tokens - before <= max(SCORED_TOKENS, first + len(request.prompt) - 1)
        if preempted and stream.kv.fed_tokens > TOKENS / 2:
            preempted = False
            engine.release(stream.kv.sequence)
            stream.preempt(engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt)))
    answer = stream.end(FinishReason.LENGTH).message
    assert isinstance(answer, Audited)
    return open_verdict(answer, auditor=SERVER.peer_id, claim=claim)


WRITTEN = {
    sampling: expected_output(request_of("c", max_new_tokens=TOKENS, sampling=sampling), ScriptedEngine())
    for sampling in (Sampling(), SAMPLED)
}


@given(st.sampled_from(list(WRITTEN)), st.integers(0, TOKENS - 1), st.integers(3, 200), st.booleans())
def test_what_the_target_commits_is_equal_at_every_position(
    sampling: Sampling, first: int, chunk: int, preempted: bool
) -> None:
    request = request_of("c", max_new_tokens=TOKENS, sampling=sampling)
    verdict = replayed(request, WRITTEN[sampling], first=first, chunk=chunk, preempted=preempted)
    assert (verdict.equal, verdict.near_ties, verdict.different) == (TOKENS - first, 0, 0)


@given(place=st.integers(0, TOKENS - 1), first=st.integers(0, TOKENS - 1))
def test_another_token_is_found_where_its_author_is_the_one_that_is_audited(place: int, first: int) -> None:
    tokens = list(WRITTEN[SAMPLED])
    right, tokens[place] = tokens[place], (tokens[place] + 1) % 16
    request = request_of("c", max_new_tokens=TOKENS, sampling=SAMPLED)
    verdict = replayed(request, tuple(tokens[: place + 1]), first=min(first, place))
    [finding] = verdict.findings
    assert (finding.position, finding.token, verdict.different) == (place, right, 1)
    assert finding.gap > 0


# The service.


def asked(
    number: int = 1,
    *,
    prompt_tokens: int = 3,
    tokens: int = 40,
    lies_at: int | None = None,
    author: Identity = SERVER,
) -> AskAudit:
    """A stream of the scripted target."""
    request = request_of("some client", prompt=(1, 2, 3) * (prompt_tokens // 3), max_new_tokens=tokens)
    output = list(expected_output(request, ScriptedEngine()))
    if lies_at is not None:
        output[lies_at] = (output[lies_at] + 1) % 16
    return claim_of(request, output, number=number, author=author)


async def verdict_of(caller: Caller, claim: AskAudit) -> AuditVerdict:
    caller.post(claim)
    answer = await caller.until(Audited, number=claim.number)
    return open_verdict(answer, auditor=SERVER.peer_id, claim=claim)


async def refused(caller: Caller, claim: AskAudit) -> Error:
    return await refusal(caller, claim, number=claim.number)


@played(play, protocol=AUDIT)
async def test_an_honest_stream_is_equal_and_a_lie_is_found(bench: Bench, caller: Caller) -> None:
    assert (await verdict_of(caller, asked(1))).equal == 40
    lie = await verdict_of(caller, asked(2, lies_at=39))
    assert (lie.equal, lie.different) == (39, 1)
    assert bench.service.counts.ended == {"audited": 2} and bench.service.counts.audited_tokens == 80


@played(play, protocol=AUDIT)
async def test_a_long_audit_is_fed_in_pieces_and_beside_a_request_that_decodes(
    bench: Bench, caller: Caller
) -> None:
    """The request needs a pass for each token, and is as fast as alone."""
    client = await bench.caller(VERIFY)
    request = request_of(client.peer_id, max_new_tokens=30)
    client.post(Open(1, request, (), Pacing.PLAIN, ()))
    began_s = asyncio.get_running_loop().time()
    judging = asyncio.ensure_future(verdict_of(caller, asked(prompt_tokens=300, tokens=200)))
    await client.until(FinalMessage)
    assert asyncio.get_running_loop().time() - began_s < 30 * FLAT.seconds(64) * 1.2
    assert (await judging).equal == 200


@played(play, protocol=AUDIT)
async def test_no_more_than_so_many_are_under_way_and_others_wait_their_turn(bench: Bench, caller: Caller) -> None:
    other = await bench.caller()
    for number in range(1, 6):
        caller.post(asked(number, tokens=400))
    judging = asyncio.ensure_future(verdict_of(other, asked(1)))
    await caller.hear_for(0.005)
    assert bench.service.requests == MAX_AUDITS
    await judging
    assert bench.service.counts.ended["audited"] <= 1 + MAX_AUDITS
    for number in range(4, 6):
        await caller.until(Audited, number=number)


@pytest.mark.thorough
@played(play, protocol=AUDIT, make=partial(VerifierService, knows=lambda author: author == SERVER.peer_id))
async def test_claims_that_strangers_sign_themselves_keep_out_none_about_known_verifiers(
    bench: Bench, caller: Caller
) -> None:
    """New clients with claims under new keys, more than may wait."""
    for number in range(MAX_WAITING + 10):
        stranger = await bench.caller()
        stranger.post(asked(1, tokens=400, author=Identity.from_seed(number.to_bytes(32, "big"))))
    await caller.hear_for(0.005)
    assert (await verdict_of(caller, asked(1))).equal == 40
    assert bench.service.counts.ended["audited"] <= 1 + MAX_AUDITS


@played(play, protocol=AUDIT, max_requests=1, curve=CostCurve(((1, 0.1),)))
async def test_a_claim_does_not_wait_for_ever(bench: Bench, caller: Caller) -> None:
    client = await bench.caller(VERIFY)
    client.post(Open(1, request_of(client.peer_id, max_new_tokens=500), (), Pacing.PLAIN, ()))
    await client.until(Opened)
    caller.post(asked(1))
    assert await caller.hear_for(MAX_WAIT_S - 1.0) == []
    [told] = await caller.hear_for(2.0)
    assert isinstance(told, Error) and told.code == ErrorCode.OVERLOADED


@played(play, ScriptedEngine(context_tokens=4096, pool_tokens=8192), protocol=AUDIT)
async def test_a_peer_that_asks_for_too_much_waits_until_it_is_paid_for_and_others_do_not(
    bench: Bench, caller: Caller
) -> None:
    other = await bench.caller()
    number = 0
    while number <= 1.1 * AHEAD_S * TOKENS_PER_S:
        number += 1497
        await verdict_of(caller, asked(number, prompt_tokens=1494, tokens=3))
    told = await refused(caller, asked(number + 1))
    assert told.code == ErrorCode.OVERLOADED and told.retry_after_s is not None
    assert 0 < told.retry_after_s < AHEAD_S
    await verdict_of(other, asked(1))
    heard = await asyncio.gather(*(one.hear_for(told.retry_after_s) for one in (caller, other)))
    assert not any(isinstance(message, Error) for some in heard for message in some)
    await verdict_of(caller, asked(number + 2))


@played(play, protocol=AUDIT, max_requests=1)
async def test_whoever_comes_takes_the_place_of_an_audit(bench: Bench, caller: Caller) -> None:
    caller.post(asked(1, tokens=400))
    await caller.hear_for(0.005)
    client = await bench.caller(VERIFY)
    client.post(Open(1, request_of(client.peer_id), (), Pacing.PLAIN, ()))
    await client.until(Opened)
    assert (await caller.until(Error)).code == ErrorCode.OVERLOADED
    await client.until(FinalMessage)
    await verdict_of(caller, asked(2))
