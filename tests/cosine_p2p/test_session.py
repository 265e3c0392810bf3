"""A session believes no verifier that breaks the stream's own rules."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from cosine_node.simulation.virtual_loop import run_virtual
from cosine_p2p.channel import Channel, serve_channel
from cosine_p2p.link import Links
from cosine_p2p.session import Job, Session
from cosine_p2p.strategies import STRATEGIES
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.memory import MemoryNetwork
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.protocols import VERIFY
from cosine_protocol.request import Request, Sampling
from tests.cosine_p2p.samples import identity_of, record_of

VERIFIER = identity_of(1)
STATS = m.PassStats(0, 1, 60_000, 0)
REQUEST = Request(
    target_digest=bytes(32),
    tokenizer_digest=bytes(32),
    numerics="float32",
    prompt=(1,),
    sampling=Sampling(),
    eos=(9,),
    client="client",
    nonce=bytes(16),
    max_new_tokens=3,
)
D_0 = request_digest(REQUEST)
Script = Callable[[int], Iterable[m.Message]]


def commit(number: int, tokens: tuple[int, ...], *, after: tuple[int, ...] = (), authors: bytes = b"") -> m.Commit:
    digest = roll_digest(D_0, [*after, *tokens])
    return m.Commit(number, len(after), tokens, digest, authors or bytes(len(tokens)), STATS)


def final(number: int, tokens: tuple[int, ...], *, signer: int = 1) -> m.Final:
    body = encode_body(m.Account(number, 0, len(tokens), roll_digest(D_0, tokens), ()))
    return m.Final(body, identity_of(signer).sign(kind="final", digest=D_0, body=body))


def outcome(script: Script) -> tuple[Session, list[int], str]:
    """Run a session against a verifier that answers `Open` with a script: its tokens and its error."""

    async def run() -> tuple[Session, list[int], str]:
        def answer(channel: Channel, message: m.Message) -> None:
            if isinstance(message, m.Open):
                for reply in (m.Opened(message.number, 60_000), *script(message.number)):
                    channel.post(reply)

        async def handle(stream: Stream) -> None:
            await serve_channel(stream, VERIFY, answer)

        network = MemoryNetwork()
        await network.join(VERIFIER.peer_id).serve(VERIFY, handle)
        links = Links(network.join("client"))
        record = record_of(VERIFIER, now_s=0.0)
        job = Job(
            number=4,
            deadline_s=60.0,
            request=REQUEST,
            strategy=STRATEGIES["plain"],
            verifiers=(record,),
            drafters=(),
        )
        session, tokens, error = Session(job, links, _at_once), list[int](), ""
        try:
            async for some in session.stream():
                tokens += some.tokens
        except GenerationFailed as failed:
            error = str(failed)
        await links.close()
        return session, tokens, error

    return run_virtual(run())


async def _at_once(check: Callable[[], None]) -> None:
    await asyncio.sleep(0)
    check()


def test_a_stream_to_its_length() -> None:
    session, tokens, error = outcome(
        lambda n: (commit(n, (1,)), commit(n, (2, 3), after=(1,)), final(n, (1, 2, 3)))
    )
    assert (tokens, error, session.finish) == ([1, 2, 3], "", m.FinishReason.LENGTH)
    assert (session.tally.rounds, session.tally.near_ties) == (2, 2)
    assert session.tally.tokens_by_verifier == {VERIFIER.peer_id: 3}


def test_a_stream_to_its_end_token() -> None:
    session, tokens, _ = outcome(lambda n: (commit(n, (1, 9)), final(n, (1, 9))))
    assert (tokens, session.finish) == ([1, 9], m.FinishReason.EOS)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda n: (commit(n, (1,), after=(5,)),), "does not continue"),
        (lambda n: (commit(n, ()),), "does not continue"),
        (lambda n: (commit(n, (1, 2, 3, 4)),), "past the length"),
        (lambda n: (commit(n, (1,), authors=b"\x01"),), "authors"),
        (lambda n: (commit(n, (1, 2), authors=b"\x00"),), "authors"),
        (lambda n: (m.Commit(n, 0, (1,), bytes(16), b"\x00", STATS),), "digest"),
        (lambda n: (commit(n, (1,)), final(n, (1,))), "before its end"),
        (lambda n: (commit(n, (1, 9)), final(n, (1,))), "before its end"),
        (lambda n: (commit(n, (1, 9)), final(n, (1, 9), signer=2)), "signature"),
        (lambda n: (m.Cancel(n),), "unexpected Cancel"),
        (lambda n: (m.Error(n, 7, "full up", 2.0),), "refused: full up"),
        (lambda n: (), "made no progress"),
    ],
)
def test_what_a_verifier_may_not_do_is_named(script: Script, reason: str) -> None:
    session, _, error = outcome(script)
    assert reason in error
    assert VERIFIER.peer_id in error
    assert session.finish is None
