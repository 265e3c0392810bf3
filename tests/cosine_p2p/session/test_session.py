"""Tests of a session against scripted peers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_p2p.session.job import AnnouncedVerifier, Job, OtherVerifiers, Shared
from cosine_p2p.session.session import Session
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_p2p.transport.link import Links
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import ErrorCode, GenerationFailed
from cosine_protocol.fields import encode_body
from cosine_protocol.identity import sign
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Cancel, Commit, Open, Opened, PassStats, Transcript
from tests.cosine_p2p.samples import identity_of, request_of
from tests.scenes import in_virtual_time

VERIFIER = identity_of(1)
STATS = PassStats(0, 1, 60_000)
REQUEST = request_of("client", max_new_tokens=3)
D_0 = request_digest(REQUEST)
Script = Callable[[int], Iterable[Message]]
Behaviour = Callable[[Channel, Message], Coroutine[None, None, None]]


def commit(number: int, tokens: tuple[int, ...], *, after: tuple[int, ...] = (), authors: bytes = b"") -> Commit:
    digest = roll_digest(D_0, [*after, *tokens])
    return Commit(number, len(after), tokens, digest, authors or bytes(len(tokens)), STATS)


def signed(commit: Commit, *, signer: int = 1, digest: bytes | None = None) -> Commit:
    transcript = Transcript(0, commit.position + len(commit.tokens), digest or commit.digest)
    return replace(commit, transcript=sign(identity_of(signer), transcript, digest=D_0))


def final(number: int, tokens: tuple[int, ...], *, signer: int = 1) -> FinalMessage:
    body = encode_body(Account(number, 0, len(tokens), roll_digest(D_0, tokens), ()))
    return FinalMessage(body, identity_of(signer).sign(kind="final", digest=D_0, body=body))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a session: its tokens, its error, the time of its end, and the peers avoided afterwards."""

    session: Session
    tokens: list[int]
    error: str
    seconds: float
    failures: frozenset[str]


def outcome(script: Script) -> tuple[Session, list[int], str]:
    """Run a session against a verifier that answers `Open` with a script: its tokens and its error."""

    async def behave(channel: Channel, message: Message) -> None:
        if isinstance(message, Open):
            for reply in (Opened(message.number, 60_000), *script(message.number)):
                channel.post(reply)

    done = played({1: behave})
    return done.session, done.tokens, done.error


@in_virtual_time
async def played(
    verifiers: Mapping[int, Behaviour],
    *,
    asked_first: tuple[int, ...] | None = None,
    others: OtherVerifiers | None = None,
) -> Outcome:
    """Run a session against scripted peers, by number. Verifiers are asked in order.

    Those `asked_first` may be others, of an earlier run; `others` are the present ones.
    """
    network = MemoryNetwork()
    for number, behave in verifiers.items():
        await network.join(identity_of(number).peer_id).serve(VERIFY, _handler(behave))
    transport = network.join("client")
    links = Links(transport)
    job = Job(
        deadline_s=60.0,
        request=REQUEST,
        strategy=STRATEGIES["plain"],
        verifiers={
            identity_of(n).peer_id: AnnouncedVerifier(0.0009)
            for n in (verifiers if asked_first is None else asked_first)
        },
        drafters=(),
    )
    shared = Shared(links=links, offload=_at_once)
    session = Session(job, shared, others=others)
    tokens, error = list[int](), ""
    try:
        async for some in session.stream():
            tokens += some.tokens
    except GenerationFailed as failed:
        error = str(failed)
    seconds = asyncio.get_running_loop().time()
    await links.close()
    return Outcome(session, tokens, error, seconds, shared.failures.avoided(seconds))


def _handler(behave: Behaviour) -> Callable[[Stream], Coroutine[None, None, None]]:
    async def handle(stream: Stream) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def answer(channel: Channel, message: Message) -> None:
            tasks.add(asyncio.ensure_future(behave(channel, message)))

        try:
            await serve_channel(stream, VERIFY, answer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return handle


def timed(*replies: tuple[float, Callable[[int], Message]]) -> Behaviour:
    """Answer `Open` with `Opened`, then each reply after its pause, in seconds."""

    async def behave(channel: Channel, message: Message) -> None:
        if isinstance(message, Open):
            channel.post(Opened(message.number, 60_000))
            for pause_s, reply in replies:
                await asyncio.sleep(pause_s)
                channel.post(reply(message.number))

    return behave


_T = TypeVar("_T")


async def _at_once(check: Callable[[], _T], /) -> _T:
    await asyncio.sleep(0)
    return check()


def test_who_signs_nothing_keeps_the_request_and_loses_its_place() -> None:
    ends: tuple[float, Callable[[int], Message]] = (0.0, lambda n: final(n, (1, 2, 3)))
    silent = played({1: timed((0.0, lambda n: commit(n, (1, 2, 3))), ends)})
    honest = played({1: timed((0.0, lambda n: signed(commit(n, (1, 2, 3)))), ends)})
    assert silent.tokens == honest.tokens == [1, 2, 3]
    assert silent.failures == {VERIFIER.peer_id} and not honest.failures


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda n: (commit(n, (1,), after=(5,)),), "does not continue"),
        (lambda n: (commit(n, (1, 2, 3, 4)),), "exceeds the requested length"),
        (lambda n: (commit(n, (1,), authors=b"\x01"),), "authors"),
        (lambda n: (Commit(n, 0, (1,), bytes(16), b"\x00", STATS),), "digest"),
        (lambda n: (commit(n, (1,)), final(n, (1,))), "before its end"),
        (lambda n: (commit(n, (1, 9)), final(n, (1, 9), signer=2)), "signature"),
        (lambda n: (signed(commit(n, (1,)), signer=2),), "the signature of a transcript"),
        (lambda n: (signed(commit(n, (1,)), digest=bytes(16)),), "a transcript is not that of the stream"),
        (lambda n: (Cancel(n),), "unexpected Cancel"),
        (lambda n: (Error(n, 7, "full up", 2.0),), "refused: full up"),
        (lambda n: (), "made no progress"),
    ],
)
def test_what_a_verifier_may_not_do_is_named(script: Script, reason: str) -> None:
    session, _, error = outcome(script)
    assert reason in error
    assert VERIFIER.peer_id in error
    assert session.finish is None


def test_a_verifier_that_leaves_after_the_last_token_has_done_its_work() -> None:
    script = timed((0.0, lambda n: commit(n, (1, 2, 3))), (0.0, lambda n: Error(n, 9, "shutting down", None)))
    done = played({1: script, 2: timed()})
    assert (done.tokens, done.error, done.session.finish) == ([1, 2, 3], "", FinishReason.LENGTH)


def test_an_account_that_never_comes_is_not_waited_for() -> None:
    done = played({1: timed((0.0, lambda n: commit(n, (1, 9))))})
    assert (done.tokens, done.session.finish) == ([1, 9], FinishReason.EOS)
    assert done.seconds < 6


async def serve_all(channel: Channel, message: Message) -> None:
    if isinstance(message, Open):
        after = message.committed
        for token in (5, 6, 7)[len(after) :]:
            after = (*after, token)
            reply = Opened(message.number, 60_000) if len(after) == len(message.committed) + 1 else None
            for each in (reply, commit(message.number, (token,), after=after[:-1])):
                if each is not None:
                    channel.post(each)
        channel.post(final(message.number, (5, 6, 7), signer=2))


async def leave_after_one(channel: Channel, message: Message) -> None:
    if isinstance(message, Open):
        channel.post(Opened(message.number, 60_000))
        channel.post(commit(message.number, (5,)))
        channel.post(Error(message.number, ErrorCode.INTERNAL, "it goes", None))


class FoundLater(OtherVerifiers):
    async def present(self) -> dict[str, AnnouncedVerifier]:
        await asyncio.sleep(1.0)
        return {identity_of(2).peer_id: AnnouncedVerifier(0.0009)}


@pytest.mark.parametrize("behave", [None, leave_after_one], ids=["gone", "lost in the middle"])
def test_where_verifiers_of_an_earlier_run_fail_those_of_now_go_on(behave: Behaviour | None) -> None:
    first = {} if behave is None else {1: behave}
    done = played({**first, 2: serve_all}, asked_first=(1,), others=FoundLater())
    assert (done.tokens, done.error) == ([5, 6, 7], "")
    assert list(done.session.verifiers) == [identity_of(1).peer_id, identity_of(2).peer_id]
    assert done.seconds < 1.5
