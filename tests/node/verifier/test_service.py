"""The verifier service on the in-memory network, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cosine_engine.base import Engine, OutOfMemory, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.passes.runner import ServedEngine
from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig
from cosine_node.verifier.intake import MOST_COMPILED
from cosine_node.verifier.service import VerifierService
from cosine_protocol.audit import AUDIT
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import BASE, Node, NodeBlock
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import open_signed, verify
from cosine_protocol.request import Constraint, ConstraintKind, Request, Sampling
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Cancel, Commit, Open, Opened, Pacing, Transcript, Tree
from tests.node.peers import (
    FLAT,
    SERVER,
    TARGET,
    TOKENIZER,
    Bench,
    Caller,
    SickEngine,
    expected_output,
    played,
    request_of,
    serving,
)
from tests.node.verifier.replaying import claim_of
from tests.scenes import as_test, in_virtual_time

Scene = Callable[[Bench, Caller], Awaitable[None]]
LONG = 400


@asynccontextmanager
async def verifying(
    engine: Engine | None = None,
    curve: CostCurve = FLAT,
    make: Callable[..., VerifierService] = VerifierService,
    protocol: str = VERIFY,
    **config: Any,
) -> AsyncIterator[Bench]:
    engine = engine or ScriptedEngine()
    service = make(
        ServedEngine(engine=engine, runner=InlineRunner(engine, curve), curve=curve),
        identity=SERVER,
        config=VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER, **config),
    )
    async with serving(service, engine, protocol) as bench:
        yield bench


@in_virtual_time
async def play(scene: Scene, engine: ScriptedEngine | None = None, **config: Any) -> None:
    """Run a scene with one caller, and check that service and engine hold nothing afterwards."""
    async with verifying(engine, **config) as bench:
        await scene(bench, await bench.caller())
        for caller in list(bench.callers):
            await bench.hang_up(caller)
        other = await bench.caller(VERIFY)
        await other.hear_for(0.1)
        await finished(other, request_of(other.peer_id, max_new_tokens=1), number=77)
        await other.hear_for(0.1)
        assert (bench.service.requests, bench.engine.open_sequences) == (0, 0)


def opening(
    request: Request, *, number: int = 1, committed: tuple[int, ...] = (), pacing: Pacing = Pacing.FREE
) -> Open:
    return Open(number, request, committed, pacing, ("drafter-1", "drafter-2"))


async def finished(caller: Caller, request: Request, *, number: int = 1) -> tuple[int, ...]:
    """Ask for a request and collect its tokens to the end."""
    caller.post(opening(request, number=number))
    return await collected(caller, number=number)


async def collected(caller: Caller, *, number: int = 1) -> tuple[int, ...]:
    tokens: list[int] = []
    while True:
        message = await caller.next()
        if isinstance(message, Commit) and message.number == number:
            tokens += message.tokens
        elif isinstance(message, FinalMessage) and decode_body(Account, message.body).number == number:
            return tuple(tokens)
        assert not (isinstance(message, Error) and message.number == number), message


async def refusal(caller: Caller, message: Message, *, number: int = 1) -> Error:
    caller.post(message)
    return await caller.until(Error, number=number)


def tree_of(base: bytes, position: int, tokens: tuple[int, ...]) -> Tree:
    """A chain of certain drafts."""
    nodes = NodeBlock.of([Node(index - 1, token, 1.0) for index, token in enumerate(tokens)])
    return Tree(1, base, position, nodes, bytes([1] * len(tokens)))


@played(play)
async def test_a_stream_goes_on_where_it_was_and_is_signed_now_and_then_and_at_its_end(
    bench: Bench, caller: Caller
) -> None:
    request = request_of(caller.peer_id, max_new_tokens=40)
    expected = expected_output(request, bench.engine)
    caller.post(opening(request, committed=expected[:3]))
    assert await collected(caller) == expected[3:]
    d_0 = request_digest(request)
    signed = {
        message.position + len(message.tokens): message.transcript
        for message in caller.heard
        if isinstance(message, Commit) and message.transcript
    }
    assert list(signed) == [32, 40]
    for tokens, transcript in signed.items():
        told = open_signed(Transcript, transcript, author=SERVER.peer_id, digest=d_0)
        assert told == Transcript(3, tokens, roll_digest(d_0, expected[:tokens]))


@played(play)
async def test_a_request_is_answered_with_its_stream_and_a_signed_account(bench: Bench, caller: Caller) -> None:
    request = request_of(caller.peer_id, max_new_tokens=12)
    tokens = await finished(caller, request)
    assert tokens == expected_output(request, bench.engine)
    assert isinstance(caller.heard[0], Opened) and caller.heard[0].pass_us == 10_000
    commits = [message for message in caller.heard if isinstance(message, Commit)]
    assert [commit.position for commit in commits] == list(range(12))
    d_0 = request_digest(request)
    assert [c.digest for c in commits] == [roll_digest(d_0, tokens[: n + 1]) for n in range(12)]
    final = caller.heard[-1]
    assert isinstance(final, FinalMessage)
    verify(kind="final", signer=SERVER.peer_id, digest=d_0, body=final.body, signature=final.signature)
    account = decode_body(Account, final.body)
    assert account == Account(1, FinishReason.LENGTH, 12, commits[-1].digest, (0, 0))


async def occupied(bench: Bench, *, clients: int) -> list[Caller]:
    """Clients with long requests."""
    callers = [await bench.caller() for _ in range(clients)]
    for caller in callers:
        caller.post(opening(request_of(caller.peer_id, max_new_tokens=2 * LONG)))
        await caller.until(Opened)
    return callers


@played(play, max_requests=2)
async def test_who_has_less_than_its_share_waits_for_a_place_for_a_while(bench: Bench, caller: Caller) -> None:
    first, _ = await occupied(bench, clients=2)
    caller.post(opening(request_of(caller.peer_id, max_new_tokens=3)))
    await caller.hear_for(0.5 * RETRY_AFTER_S)
    first.post(Cancel(1))
    assert len(await collected(caller)) == 3
    third = await occupied(bench, clients=1)
    error = await refusal(caller, opening(request_of(caller.peer_id), number=2), number=2)
    assert (error.code, error.retry_after_s) == (ErrorCode.OVERLOADED, RETRY_AFTER_S)
    caller.post(opening(request_of(caller.peer_id), number=3), Cancel(3))
    assert (await caller.until(Error, number=3)).code == ErrorCode.OVERLOADED
    assert third[0].peer_id in bench.network.transports


@in_virtual_time
async def test_a_draining_verifier_sends_all_away_who_come_or_wait_and_finishes_what_it_has() -> None:
    async with verifying(max_requests=1) as bench:
        [holder] = await occupied(bench, clients=1)
        caller, auditor = await bench.caller(), await bench.caller(AUDIT)
        caller.post(opening(request_of(caller.peer_id)))
        await caller.hear_for(0.1)
        draining = asyncio.ensure_future(bench.service.drain())
        assert (await caller.until(Error, number=1)).code == ErrorCode.SHUTTING_DOWN
        error = await refusal(caller, opening(request_of(caller.peer_id), number=2), number=2)
        audit = claim_of(request_of("another"), (1, 2))
        refused = await refusal(auditor, audit, number=audit.number)
        assert (error.code, refused.code) == (ErrorCode.SHUTTING_DOWN, ErrorCode.SHUTTING_DOWN)
        assert not draining.done()
        holder.post(Cancel(1))
        await asyncio.wait_for(draining, 1.0)
        assert bench.service.requests == 0


@played(play)
async def test_a_tree_outside_the_vocabulary_is_ignored_and_its_request_goes_on(
    bench: Bench, caller: Caller
) -> None:
    request = request_of(caller.peer_id, max_new_tokens=20)
    stream = expected_output(request, bench.engine)
    caller.post(opening(request), tree_of(request_digest(request), 0, (stream[0], 64)))
    assert await collected(caller) == stream


@pytest.mark.parametrize("authors", [b"\x03", b"\x01\x01", b""], ids=["unknown", "too many", "too few"])
@played(play)
async def test_a_tree_whose_authors_do_not_fit_ends_its_request(
    bench: Bench, caller: Caller, authors: bytes
) -> None:
    request = request_of(caller.peer_id, max_new_tokens=LONG)
    caller.post(opening(request))
    nodes = NodeBlock.of([Node(BASE, 1, 1.0)])
    error = await refusal(caller, Tree(1, request_digest(request), 0, nodes, authors))
    assert error.code == ErrorCode.MALFORMED


@played(play)
async def test_a_tree_for_nobody_and_a_message_for_clients_hurt_nobody(bench: Bench, caller: Caller) -> None:
    caller.post(tree_of(bytes(16), 0, (1, 2)), Cancel(5), Opened(1, 1))
    assert (await caller.until(Error, number=0)).code == ErrorCode.MALFORMED
    request = request_of(caller.peer_id)
    assert await finished(caller, request) == expected_output(request, bench.engine)


class FragileEngine(ScriptedEngine):
    """Fails whole passes that feed token 50."""

    def __init__(self, error: Exception) -> None:
        super().__init__(model_seed=3)
        self._error = error

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        if any(50 in row.tokens for row in rows):
            raise self._error
        return super().forward(rows)


@pytest.mark.parametrize(
    ("engine", "prompt", "code"),
    [
        (SickEngine(sick_tokens=frozenset({50}), model_seed=3), (50, 1), ErrorCode.BAD_LOGITS),
        (ScriptedEngine(pool_tokens=64), (1,) * 60, ErrorCode.OUT_OF_MEMORY),
        (FragileEngine(RuntimeError("kernel")), (50,), ErrorCode.INTERNAL),
        (FragileEngine(OutOfMemory("The device has no memory left for a pass.")), (50,), ErrorCode.OUT_OF_MEMORY),
    ],
    ids=["bad logits", "never fits", "a pass breaks", "a pass needs too much"],
)
@pytest.mark.parametrize("comes_later", [False, True])
@as_test(play, given=2, shared=("engine",))
async def test_a_request_that_fails_does_so_alone(
    bench: Bench,
    caller: Caller,
    engine: ScriptedEngine,
    prompt: tuple[int, ...],
    code: ErrorCode,
    comes_later: bool,
) -> None:
    healthy = request_of(caller.peer_id, prompt=(4,), max_new_tokens=20)
    caller.post(opening(healthy, number=1))
    if comes_later:
        await caller.until(Commit)
    bad = request_of(caller.peer_id, prompt=prompt, max_new_tokens=20)
    error = await refusal(caller, opening(bad, number=2), number=2)
    is_refused = isinstance(engine, FragileEngine) and code == ErrorCode.OUT_OF_MEMORY
    assert (error.code, error.retry_after_s) == (code, RETRY_AFTER_S if is_refused else None)
    first = [t for h in caller.heard if isinstance(h, Commit) for t in h.tokens]
    assert (*first, *await collected(caller)) == expected_output(healthy, bench.engine)


@pytest.mark.parametrize("pacing", list(Pacing))
@pytest.mark.parametrize("pool_tokens", [64, 4096])
def test_requests_share_passes_and_where_they_do_not_fit_their_pages_in_turns(
    pacing: Pacing, pool_tokens: int
) -> None:
    """Three streams of 40 tokens; in a pool of 64 the youngest are preempted and recomputed."""

    async def scene(bench: Bench, caller: Caller) -> None:
        callers = [caller, await bench.caller(), await bench.caller()]
        requests = [request_of(c.peer_id, prompt=(place, 7), max_new_tokens=38) for place, c in enumerate(callers)]
        for each, request in zip(callers, requests, strict=True):
            each.post(opening(request, pacing=pacing))
        streams = await asyncio.gather(*(collected(each) for each in callers))
        assert streams == [expected_output(request, bench.engine) for request in requests]
        assert bench.engine.passes <= 45 or pool_tokens == 64

    play(scene, ScriptedEngine(pool_tokens=pool_tokens))


class CountingEngine(ScriptedEngine):
    """Counts what is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.fed_tokens = 0

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self.fed_tokens += sum(len(row.tokens) for row in rows)
        return super().forward(rows)


@pytest.mark.parametrize(("shares_prefixes", "fed_tokens"), [(False, 101), (True, 5)])
def test_a_prompt_that_begins_alike_is_not_fed_twice_to_a_client_nor_to_others_if_allowed(
    shares_prefixes: bool, fed_tokens: int
) -> None:
    """A chat's next turn: 101 tokens, of which 96 fill whole pages."""
    engine = CountingEngine()
    prompt = tuple(range(50)) * 2

    async def fed_for(caller: Caller, turn: int, cache_scope: bytes | None = None) -> int:
        before = engine.fed_tokens
        request = request_of(caller.peer_id, prompt=(*prompt, turn), max_new_tokens=1)
        caller.post(replace(opening(request, number=turn), cache_scope=cache_scope))
        assert await collected(caller, number=turn) == expected_output(request, engine)
        return engine.fed_tokens - before

    async def scene(bench: Bench, caller: Caller) -> None:
        assert await fed_for(caller, 1) == 101
        assert await fed_for(caller, 2) == 5
        assert await fed_for(await bench.caller(), 3) == fed_tokens
        # Cache scopes of a gateway's users are never shared.
        assert [await fed_for(caller, turn, bytes([7] * 16)) for turn in (4, 5)] == [101, 5]
        assert await fed_for(caller, 6, bytes([8] * 16)) == 101

    play(scene, engine, shares_prefixes=shares_prefixes)


@pytest.mark.parametrize(("pacing", "most"), [(Pacing.FREE, 30), (Pacing.PLAIN, 60)])
@played(play, ScriptedEngine(vocab_tokens=4))
async def test_the_verifier_drafts_repetitions_of_the_text_unless_plain_decoding_is_requested(
    bench: Bench, caller: Caller, pacing: Pacing, most: int
) -> None:
    """A target with four tokens soon repeats itself."""
    request = request_of(caller.peer_id, prompt=(1, 0), max_new_tokens=60)
    caller.post(opening(request, pacing=pacing))
    assert await collected(caller) == expected_output(request, bench.engine)
    commits = [message for message in caller.heard if isinstance(message, Commit)]
    assert len(commits) <= most
    assert pacing is Pacing.FREE or len(commits) == most
    assert not any(author for commit in commits for author in commit.authors)


@played(play, ScriptedEngine(pool_tokens=64))
async def test_while_requests_wait_for_memory_newcomers_are_sent_away_for_a_while(
    bench: Bench, caller: Caller
) -> None:
    for number in (1, 2):
        caller.post(opening(request_of(caller.peer_id, prompt=(1,) * 40, max_new_tokens=20), number=number))
    await caller.until(Commit, number=1)
    late = request_of(caller.peer_id, prompt=(1,) * 40, max_new_tokens=20)
    error = await refusal(caller, opening(late, number=3), number=3)
    assert (error.code, error.retry_after_s) == (ErrorCode.OVERLOADED, RETRY_AFTER_S)


@played(play, curve=CostCurve(((1, 0.01), (100, 0.01), (200, 60.0))))
async def test_a_pass_that_only_serves_who_has_left_is_abandoned(bench: Bench, caller: Caller) -> None:
    leaving = await bench.caller()
    leaving.post(opening(request_of(leaving.peer_id, prompt=(1, 2) * 100, max_new_tokens=LONG)))
    await leaving.until(Opened)
    await bench.hang_up(leaving)
    request = request_of(caller.peer_id, max_new_tokens=1)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await finished(caller, request) == expected_output(request, bench.engine)
    assert loop.time() - began_s < 1.0


# A pass over two tokens, those of two requests, costs what one token costs; a third makes it 1.45 times as long,
# a little less than the 1.5 times as many tokens that a certain node promises.
STEEP_AT_THREE = CostCurve(((1, 0.01), (2, 0.01), (3, 0.0145), (64, 0.0145)))


async def send_wrong_drafts(bench: Bench, caller: Caller, request: Request) -> None:
    """Run a request to its end, and send a wrong token as certain for every next one."""
    caller.post(opening(request))
    stream = expected_output(request, bench.engine)
    while not isinstance(message := await caller.next(), FinalMessage):
        if isinstance(message, Commit):
            later = message.position + len(message.tokens) + 1
            wrong = [
                Node(BASE, (token + 1) % bench.engine.vocab_tokens, 1.0) for token in stream[later : later + 1]
            ]
            base = roll_digest(request_digest(request), stream[:later])
            caller.post(Tree(1, base, later, NodeBlock.of(wrong), bytes([1] * len(wrong))))


@played(play, curve=STEEP_AT_THREE)
async def test_wrong_drafts_of_one_client_do_not_slow_the_others(bench: Bench, caller: Caller) -> None:
    """Sixty tokens of an honest client next to one whose drafts are all wrong."""
    honest = await bench.caller()
    sending = asyncio.ensure_future(
        send_wrong_drafts(bench, caller, request_of(caller.peer_id, max_new_tokens=100))
    )
    began_s = asyncio.get_running_loop().time()
    await finished(honest, request_of(honest.peer_id, prompt=(9, 8), max_new_tokens=60))
    plain_s = 60 * STEEP_AT_THREE.seconds(2)
    assert asyncio.get_running_loop().time() - began_s < 1.1 * plain_s
    await sending


class SlowGrammars:
    """Constraints that are all found to be wrong once `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def fault(self, constraint: Constraint) -> str | None:
        return "it is wrong" if self.go_on.is_set() else None

    async def prepare(self, constraint: Constraint) -> None:
        await self.go_on.wait()


class ConstrainedEngine(ScriptedEngine):
    """A scripted engine that would apply these constraints."""

    def __init__(self, grammars: Any) -> None:
        super().__init__()
        self.grammars = grammars


SLOW_GRAMMARS = SlowGrammars()


@played(play, ConstrainedEngine(SLOW_GRAMMARS))
async def test_constraints_that_are_compiled_are_bounded_and_each_opening_is_answered_once(
    bench: Bench, caller: Caller
) -> None:
    other, sampling = await bench.caller(), Sampling(constraint=Constraint(ConstraintKind.REGEX, "a", (0,)))

    def asked(by: Caller, number: int) -> Open:
        return opening(request_of(by.peer_id, sampling=sampling, eos=(0,)), number=number)

    caller.post(*(asked(caller, number) for number in range(1, MOST_COMPILED + 1)))
    assert (await refusal(caller, asked(caller, 3), number=3)).code == ErrorCode.MALFORMED
    assert (await refusal(other, asked(other, 3), number=3)).code == ErrorCode.OVERLOADED
    assert (await refusal(caller, Cancel(2), number=2)).code == ErrorCode.OVERLOADED
    SLOW_GRAMMARS.go_on.set()
    told = [heard for heard in await caller.hear_for(0.5) if isinstance(heard, Error)]
    assert {error.code for error in told} == {ErrorCode.BAD_CONSTRAINT}
    assert [error.number for error in told] == [1, *range(3, MOST_COMPILED + 1)]
