"""Drafters that break every promise, on the in-memory network."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cosine_p2p.channel import Channel, serve_channel
from cosine_p2p.transport.base import Stream
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.identity import Identity
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.protocols import DRAFT
from tests.swarm.reference import VOCAB_TOKENS

FLOOD_FRAGMENTS = 60


@dataclass(slots=True)
class Followed:
    """A request as a liar sees it. `d_0` names the request, `digest` what is committed."""

    number: int
    d_0: bytes
    digest: bytes
    position: int
    fragments: int = 0


Lie = Callable[["Liar", Followed], Iterable[m.Message]]


class Liar:
    """Serves `/cosine/draft` and answers every assignment and commit with a lie."""

    def __init__(self, identity: Identity, lie: Lie, *, prompt_nll: float = 0.0) -> None:
        self.identity = identity
        self.rng = random.Random(identity.peer_id)
        self._lie = lie
        self._prompt_nll = prompt_nll
        self.followed: dict[int, Followed] = {}

    async def handle(self, stream: Stream) -> None:
        await serve_channel(stream, DRAFT, self.receive)

    def receive(self, channel: Channel, message: m.Message) -> None:
        """Take one message of a client."""
        match message:
            case m.Start(number, body, committed):
                d_0 = request_digest(body.request())
                digest = roll_digest(d_0, committed)
                self.followed[number] = Followed(number, d_0, digest, len(committed))
                channel.post(m.Started(number, self._prompt_nll, 100))
            case m.Assign(number):
                self._say(channel, self.followed[number])
            case m.Advance(number, position, tokens):
                followed = self.followed[number]
                new = tokens[followed.position - position :]
                followed.digest = roll_digest(followed.digest, new)
                followed.position += len(new)
                self._say(channel, followed)
            case _:
                return

    def _say(self, channel: Channel, followed: Followed) -> None:
        for message in self._lie(self, followed):
            channel.post(message)

    def guesses(self, count: int = 4) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCAB_TOKENS) for _ in range(count))

    def fragment(
        self,
        followed: Followed,
        tokens: Sequence[int],
        *,
        base: bytes | None = None,
        signer: Identity | None = None,
    ) -> m.Fragment:
        """A chain that claims to be certain."""
        followed.fragments += 1
        nodes = tuple(Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens))
        draft = m.Draft(
            followed.number, followed.fragments, base or followed.digest, followed.position, NodeBlock.of(nodes)
        )
        body = encode_body(draft)
        signature = (signer or self.identity).sign(kind="fragment", digest=followed.d_0, body=body)
        return m.Fragment(body, signature)


STRANGER = Identity.from_seed(b"\x77" * 32)


def certain_garbage(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    yield liar.fragment(followed, liar.guesses())


def wide_garbage(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    for token in range(VOCAB_TOKENS):
        yield liar.fragment(followed, (token, *liar.guesses(2)))


def unknown_base(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    yield liar.fragment(followed, liar.guesses(), base=liar.rng.randbytes(16))


def foreign_signature(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    """As a fragment of somebody else does that is sent again."""
    yield liar.fragment(followed, liar.guesses(), signer=STRANGER)


def broken_body(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    body = b"\xc1not a draft"
    yield m.Fragment(body, liar.identity.sign(kind="fragment", digest=followed.d_0, body=body))


def foreign_message(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    yield m.Commit(followed.number, 0, (1,), followed.digest, b"\x00", m.PassStats(0, 0, 0, 0))


def flood(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    for _ in range(FLOOD_FRAGMENTS):
        yield liar.fragment(followed, liar.guesses(8))


def silence(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    return ()


def no_such_token(liar: Liar, followed: Followed) -> Iterable[m.Message]:
    yield liar.fragment(followed, (VOCAB_TOKENS + 7,))


LIES: dict[str, Lie] = {
    lie.__name__: lie
    for lie in (
        certain_garbage,
        wide_garbage,
        unknown_base,
        foreign_signature,
        broken_body,
        foreign_message,
        flood,
        silence,
    )
}
