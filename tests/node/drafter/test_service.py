"""The drafter on the in-memory network in virtual time: requests, signatures and mandates."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.request import IDLE_S
from cosine_node.drafter.service import (
    FORGOTTEN_S,
    MAX_MANDATE_USES,
    RETRY_AFTER_S,
    TICK_S,
    DrafterConfig,
    DrafterService,
)
from cosine_node.passes.runner import ServedEngine
from cosine_p2p.fair_places import IDLE_WANTED_S
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import (
    DRAFT,
    Advance,
    Assign,
    Busy,
    Draft,
    Fragment,
    Mandate,
    Release,
    ReleaseReason,
    Start,
    Started,
)
from cosine_protocol.errors import BadSignature, ErrorCode
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import Identity, Signed, sign, verify
from cosine_protocol.request import Request, Sampling
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from tests.node.peers import (
    FLAT,
    SERVER,
    TOKENIZER,
    Bench,
    Caller,
    expected_output,
    played,
    request_of,
    serving,
)
from tests.scenes import in_virtual_time

Scene = Callable[[Bench, Caller], Awaitable[None]]
LONG = 400


@asynccontextmanager
async def drafting(
    engine: ScriptedEngine | None = None,
    *,
    curve: CostCurve = FLAT,
    clock: Callable[[], float] = time.time,
    **config: Any,
) -> AsyncIterator[Bench]:
    engine = engine or ScriptedEngine()
    service = DrafterService(
        ServedEngine(engine=engine, runner=InlineRunner(engine, curve), curve=curve),
        identity=SERVER,
        config=DrafterConfig(tokenizer_digest=TOKENIZER, **config),
        clock=clock,
    )
    async with serving(service, engine, DRAFT) as bench:
        yield bench


@in_virtual_time
async def play(scene: Scene, engine: ScriptedEngine | None = None, **config: Any) -> None:
    """Run a scene with one caller; afterwards nothing may be left in the service or its engine."""
    async with drafting(engine, **config) as bench:
        await scene(bench, await bench.caller())
        for caller in list(bench.callers):
            await bench.hang_up(caller)
        await asyncio.sleep(0.1)
        assert bench.service.requests == 0
        assert bench.engine.open_sequences == 0


def start(request: Request, *, number: int = 1, committed: tuple[int, ...] = ()) -> Start:
    return Start(number, request, committed)


def assign(base: bytes, *, position: int = 0, **options: Any) -> Assign:
    plan: dict[str, Any] = {"depth": 8, "width": 1, "window": 8} | options
    return Assign(1, base, position, **plan)


async def followed(caller: Caller, *, prompt: tuple[int, ...] = (1, 2, 3), window: int = 8) -> Request:
    request = request_of(caller.peer_id, prompt=prompt, max_new_tokens=LONG)
    caller.post(start(request), assign(request_digest(request), window=window))
    await caller.until(Started)
    return request


def draft_of(fragment: Fragment) -> Draft:
    return decode_body(Draft, fragment.body)


def fragments_in(messages: list[Message]) -> list[Draft]:
    return [draft_of(message) for message in messages if isinstance(message, Fragment)]


@played(play)
async def test_a_follower_says_how_well_it_knows_the_prompt_and_drafts_the_stream_once_it_is_asked_to(
    bench: Bench, caller: Caller
) -> None:
    # Other weights and numerics are no reason to refuse.
    request = request_of(caller.peer_id, max_new_tokens=LONG, numerics="bfloat16", target_digest=bytes([9]) * 32)
    d_0 = request_digest(request)
    caller.post(start(request))
    started = await caller.until(Started)
    assert (started.prompt_nll > 0, started.token_us) == (True, 10_000)
    assert fragments_in(await caller.hear_for(1.0)) == []
    caller.post(assign(d_0))
    heard = await caller.hear_for(0.5)
    for fragment in heard:
        assert isinstance(fragment, Fragment)
        signed: dict[str, Any] = {"kind": "fragment", "signer": SERVER.peer_id, "body": fragment.body}
        verify(**signed, digest=d_0, signature=fragment.signature)
        with pytest.raises(BadSignature):
            verify(**signed, digest=bytes(16), signature=fragment.signature)
    live, drafts = LiveTree(d_0), fragments_in(heard)
    for draft in drafts:
        assert live.attach(draft.base, draft.position, draft.nodes, [1] * len(draft.nodes))
    assert [draft.sequence for draft in drafts] == list(range(1, len(drafts) + 1))
    drafted = tuple(node.token for node in live.walk())
    assert len(drafted) == 8
    assert drafted == expected_output(request, bench.engine)[:8]


@played(play, max_requests=2)
async def test_a_silent_client_gives_its_place_up_where_another_wants_it_and_in_the_end(
    bench: Bench, caller: Caller
) -> None:
    silent = [await bench.caller() for _ in range(2)]
    for one in silent:
        one.post(start(request_of(one.peer_id)))
        await one.until(Started)
    caller.post(start(request_of(caller.peer_id)))
    assert (await caller.until(Busy)).number == 1
    heard = await asyncio.gather(*(one.hear_for(IDLE_WANTED_S) for one in silent))
    assert not any(isinstance(message, Busy) for some in heard for message in some)
    caller.post(start(request_of(caller.peer_id)))
    await caller.until(Started)
    assert await silent[0].until(Busy) == Busy(1, RETRY_AFTER_S)
    await asyncio.gather(*(one.hear_for(FORGOTTEN_S + TICK_S) for one in bench.callers))
    assert bench.service.requests == 0


@pytest.mark.parametrize(
    ("change", "committed", "code"),
    [
        ({"client": SERVER.peer_id}, (), ErrorCode.MALFORMED),
        ({"prompt": ()}, (), ErrorCode.MALFORMED),
        ({"tokenizer_digest": bytes([9]) * 32}, (), ErrorCode.WRONG_TOKENIZER),
        ({"prompt": (1, 64)}, (), ErrorCode.WRONG_TOKENIZER),
        ({}, (64,), ErrorCode.WRONG_TOKENIZER),
        ({"prompt": (1,) * 32}, (), ErrorCode.PROMPT_TOO_LONG),
        ({"prompt": (1,) * 30}, (1, 1), ErrorCode.PROMPT_TOO_LONG),
    ],
    ids=["client", "empty", "tokenizer", "vocabulary", "output", "length", "both"],
)
def test_what_cannot_be_followed_is_refused_with_its_code(
    change: dict[str, Any], committed: tuple[int, ...], code: ErrorCode
) -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        caller.post(start(request_of(**{"client": caller.peer_id, **change}), committed=committed))
        assert (await caller.until(Error, number=1)).code == code
        assert bench.engine.open_sequences == 0
        # What fits the context to its last token is followed, and has its number for itself.
        for expected in (Started, Error):
            caller.post(start(request_of(caller.peer_id, prompt=(1,) * 30), committed=(1,)))
            await caller.until(expected, number=1)
        assert bench.service.requests == 1

    play(scene, ScriptedEngine(context_tokens=32))


@played(play)
async def test_drafting_stops_two_seconds_after_the_client_was_last_heard(bench: Bench, caller: Caller) -> None:
    request = await followed(caller, window=1)
    stream = expected_output(request, bench.engine)
    await caller.hear_for(0.5)
    caller.post(Advance(1, 0, stream[:1]))
    await caller.until(Fragment)
    await caller.hear_for(IDLE_S + 0.5)
    passes = bench.engine.passes
    other = await bench.caller()
    other.post(start(request_of(other.peer_id)))
    await other.until(Started)
    assert bench.engine.passes == passes + 1
    caller.post(Advance(1, 1, stream[1:2]))
    assert draft_of(await caller.until(Fragment)).position == 2


@played(play, ScriptedEngine(pool_tokens=32))
async def test_a_request_for_which_there_are_no_pages_is_let_go_and_the_others_go_on(
    bench: Bench, caller: Caller
) -> None:
    request = await followed(caller, window=1)
    others = [await bench.caller() for _ in range(2)]
    for other in others:
        other.post(start(request_of(other.peer_id)))
    await others[0].until(Started)
    assert await others[1].until(Busy) == Busy(1, RETRY_AFTER_S)
    caller.post(Advance(1, 0, expected_output(request, bench.engine)[:1]))
    await caller.until(Fragment)
    assert bench.service.requests == 2


@played(play)
async def test_a_draining_drafter_lets_go_and_takes_nobody(bench: Bench, caller: Caller) -> None:
    await followed(caller)
    await bench.service.drain()
    assert (await caller.until(Error, number=1)).code == ErrorCode.SHUTTING_DOWN
    caller.post(start(request_of(caller.peer_id), number=2))
    assert (await caller.until(Busy)).number == 2


@pytest.mark.parametrize("tokens", [(64,), (1, 1 << 30)])
@played(play)
async def test_tokens_outside_the_vocabulary_hurt_no_other_request(
    bench: Bench, caller: Caller, tokens: tuple[int, ...]
) -> None:
    other = await bench.caller()
    request = await followed(other, prompt=(5, 6), window=4)
    await other.hear_for(0.5)
    hostile = request_of(caller.peer_id)
    d_0 = request_digest(hostile)
    caller.post(start(hostile), assign(d_0), Advance(1, 0, tokens), assign(d_0))
    await caller.hear_for(0.5)
    other.post(Advance(1, 0, expected_output(request, bench.engine)[:1]))
    heard = await other.hear_for(0.5)
    assert fragments_in(heard)
    assert not [message for message in heard if isinstance(message, Error)]


@played(play)
async def test_a_window_of_a_prompt_is_drafted_for_under_the_digest_of_the_whole_request(
    bench: Bench, caller: Caller
) -> None:
    sampling = Sampling(temperature=0.8, seed=9)
    whole = request_of(caller.peer_id, prompt=tuple(range(10, 30)), max_new_tokens=20, sampling=sampling)
    d_0, expected = request_digest(whole), expected_output(whole, bench.engine)
    # The scripted engine looks at three tokens, and the noise at output positions alone.
    shown = replace(whole, prompt=whole.prompt[-3:], nonce=bytes(16))
    known = expected[:2]
    caller.post(Start(1, shown, known, d_0=d_0), assign(roll_digest(d_0, known), position=2, depth=4))
    await caller.until(Started)
    fragment = await caller.until(Fragment)
    verify(kind="fragment", signer=SERVER.peer_id, digest=d_0, body=fragment.body, signature=fragment.signature)
    draft = draft_of(fragment)
    assert (draft.base, draft.position) == (roll_digest(d_0, known), 2)
    assert draft.nodes.tokens[0] == expected[2]
    caller.post(Advance(1, 2, expected[2:5]), Release(1))
    final = await caller.until(FinalMessage)
    verify(kind="final", signer=SERVER.peer_id, digest=d_0, body=final.body, signature=final.signature)
    account = decode_body(Account, final.body)
    sent = sum(len(each.nodes) for each in fragments_in(caller.heard))
    assert account == Account(1, FinishReason.CANCELLED, 5, roll_digest(d_0, expected[:5]), (sent,))
    assert bench.service.requests == 0


@played(play)
async def test_what_came_of_drafts_is_the_clients_word_bounded_by_what_was_sent(
    bench: Bench, caller: Caller
) -> None:
    counts = bench.service.counts
    request = request_of(caller.peer_id, max_new_tokens=LONG)
    caller.post(start(request), assign(request_digest(request)))
    await caller.until(Fragment)
    caller.post(Release(1, 1, 8, ReleaseReason.OTHERS_BETTER))
    await caller.until(FinalMessage)
    assert (counts.accepted_tokens, counts.text_tokens) == (1, 8)
    # The text has ended: the same request is told of once more, and counts once.
    caller.post(Release(1, LONG, LONG, ReleaseReason.ENDED), Release(9, 5, 5, ReleaseReason.ENDED))
    caller.post(start(request, number=2), Release(2, 0, 50, ReleaseReason.ENDED))
    await caller.hear_for(0.5)
    assert (counts.accepted_tokens, counts.text_tokens) == (counts.sent_nodes, LONG)
    assert counts.let_go == {ReleaseReason.OTHERS_BETTER: 1}


CLIENT = Identity.from_seed(bytes([200]) * 32)
CLOCK_S = 1000.0


def mandate(
    request: Request, delegate: str, *, signer: Identity = CLIENT, d_0: bytes | None = None, **changes: Any
) -> Signed[Mandate]:
    """A mandate for this drafter that lasts ten seconds and ten tokens."""
    fields: dict[str, Any] = {
        "delegate": delegate,
        "drafters": (SERVER.peer_id,),
        "most_tokens": 10,
        "issued_at_s": CLOCK_S,
        "lifetime_s": 10.0,
    }
    return sign(signer, Mandate(**fields | changes), digest=d_0 or request_digest(request))


def asked_for(**changes: Any) -> Request:
    return request_of(CLIENT.peer_id, max_new_tokens=LONG, **changes)


@played(play, clock=lambda: CLOCK_S)
async def test_a_delegate_is_followed_for_its_client_s_mandate_at_one_place(bench: Bench, caller: Caller) -> None:
    request = asked_for()
    shown = mandate(request, caller.peer_id)
    caller.post(Start(1, request, (), shown), assign(request_digest(request)))
    await caller.until(Started)
    fragment = await caller.until(Fragment)
    signed: dict[str, Any] = {"kind": "fragment", "signer": SERVER.peer_id, "body": fragment.body}
    verify(**signed, digest=request_digest(request), signature=fragment.signature)
    caller.post(Start(2, request, (), shown))
    assert (await caller.until(Error, number=2)).code == ErrorCode.BAD_MANDATE
    assert bench.service.requests == 1
    caller.post(Release(1), Start(2, request, (), shown))
    await caller.until(Started, number=2)


@pytest.mark.parametrize(
    ("window_tokens", "names_it", "prompt", "reason"),
    [
        (3, True, (1, 1, 1), None),
        (2, True, (1, 1, 1), "the prompt is longer than the mandate's window"),
        (3, True, (7, 7, 7), "the mandate is for another prompt"),
        (3, False, (7, 7, 7), "the mandate is for another prompt"),
    ],
)
@played(play, clock=lambda: CLOCK_S)
async def test_a_delegate_shows_the_window_of_the_client_s_prompt_under_the_digest_of_the_whole(
    bench: Bench, caller: Caller, window_tokens: int, names_it: bool, prompt: tuple[int, ...], reason: str | None
) -> None:
    whole = asked_for(prompt=(1,) * 9)
    shown = replace(whole, prompt=whole.prompt[-3:], nonce=bytes(16))
    digest = request_digest(shown) if names_it else None
    signed = mandate(whole, caller.peer_id, prompt_window_tokens=window_tokens, shown=digest)
    caller.post(Start(1, replace(shown, prompt=prompt), (), signed, d_0=request_digest(whole)))
    if reason is None:
        await caller.until(Started)
    else:
        assert (await caller.until(Error)).message == reason


@played(play, clock=lambda: CLOCK_S)
async def test_a_mandate_is_used_up_after_a_few_beginnings(bench: Bench, caller: Caller) -> None:
    request = asked_for()
    shown = mandate(request, caller.peer_id)
    for number in range(1, MAX_MANDATE_USES + 1):
        caller.post(Start(number, request, (), shown))
        await caller.until(Started, number=number)
        caller.post(Release(number))
    caller.post(Start(99, request, (), shown))
    assert (await caller.until(Error, number=99)).message == "the mandate is used up"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (None, ErrorCode.MALFORMED),
        ({"signer": SERVER}, ErrorCode.BAD_MANDATE),
        ({"delegate": CLIENT.peer_id}, ErrorCode.BAD_MANDATE),
        ({"d_0": bytes(16)}, ErrorCode.BAD_MANDATE),
        ({"drafters": (CLIENT.peer_id,)}, ErrorCode.BAD_MANDATE),
        ({"issued_at_s": CLOCK_S - 11.0}, ErrorCode.BAD_MANDATE),
        ({"issued_at_s": CLOCK_S + 100.0}, ErrorCode.BAD_MANDATE),
        ({"most_tokens": 1}, ErrorCode.BAD_MANDATE),
    ],
    ids=["none", "signer", "delegate", "request", "drafter", "ended", "future", "tokens"],
)
@played(play, clock=lambda: CLOCK_S)
async def test_without_one_that_holds_it_is_refused(
    bench: Bench, caller: Caller, changes: dict[str, Any] | None, code: ErrorCode
) -> None:
    request = asked_for()
    shown = None if changes is None else mandate(request, **{"delegate": caller.peer_id} | changes)
    caller.post(Start(1, request, (4, 5), shown))
    assert (await caller.until(Error)).code == code
    assert bench.service.requests == 0
