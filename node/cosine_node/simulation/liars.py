"""Drafters that break every promise, on the in-memory network.

A `Liar` has no model: it answers every assignment and commit with a lie, if need be with what it overheard of
another's drafts. One that is late on purpose (`LATE`) needs a drafter's own service, on a `SimulatedMachine` with
`extra_s`.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cosine_p2p.channel import Channel, serve_channel
from cosine_p2p.transport.base import Stream
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.identity import Identity
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.protocols import DRAFT

FLOOD_FRAGMENTS: Final = 60
MAX_OVERHEARD: Final = 256
LATE: Final = "late"
"""Drafts honestly, and later than its announced speed says."""


@dataclass(slots=True)
class LiarRequest:
    """A request as a liar sees it. `d_0` names the request, `digest` what is committed."""

    number: int
    d_0: bytes
    digest: bytes
    position: int
    fragments: int = 0


Lie = Callable[["Liar", LiarRequest], Iterable[m.Message]]


class Liar:
    """Serves `/cosine/draft` and answers every assignment and commit with a lie.

    `prompt_nll` is what it claims to know of the prompt, `overheard` what it has of other drafters.
    """

    def __init__(
        self,
        identity: Identity,
        lie: Lie,
        *,
        vocab_tokens: int,
        prompt_nll: float = 0.0,
        overheard: "Overheard | None" = None,
    ) -> None:
        self.identity = identity
        self.vocab_tokens = vocab_tokens
        self.overheard = overheard or Overheard()
        self.rng = random.Random(identity.peer_id)
        self._lie = lie
        self._prompt_nll = prompt_nll
        self.followed: dict[int, LiarRequest] = {}

    async def handle(self, stream: Stream) -> None:
        await serve_channel(stream, DRAFT, self.receive)

    def receive(self, channel: Channel, message: m.Message) -> None:
        """Take one message of a client."""
        match message:
            case m.Start(number, request, committed):
                d_0 = request_digest(request)
                digest = roll_digest(d_0, committed)
                self.followed[number] = LiarRequest(number, d_0, digest, len(committed))
                channel.post(m.Started(number, self._prompt_nll, 100))
            case m.Assign(number):
                if number in self.followed:
                    self._say(channel, self.followed[number])
            case m.Advance(number, position, tokens) if number in self.followed:
                followed = self.followed[number]
                new = tokens[max(0, followed.position - position) :]
                followed.digest = roll_digest(followed.digest, new)
                followed.position += len(new)
                self._say(channel, followed)
            case m.Release(number):
                self.followed.pop(number, None)
            case _:
                return

    def _say(self, channel: Channel, followed: LiarRequest) -> None:
        for message in self._lie(self, followed):
            channel.post(message)

    def guesses(self, count: int = 4) -> tuple[int, ...]:
        return tuple(self.rng.randrange(self.vocab_tokens) for _ in range(count))

    def fragment(
        self,
        followed: LiarRequest,
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


@dataclass(slots=True)
class Overheard:
    """The last drafts that others signed, by request."""

    drafts: dict[bytes, deque[m.Draft]] = field(default_factory=dict)

    def note(self, d_0: bytes, draft: m.Draft) -> None:
        self.drafts.setdefault(d_0, deque(maxlen=MAX_OVERHEARD)).append(draft)


class OverheardIdentity(Identity):
    """An identity that lets a liar hear every draft it signs."""

    def __init__(self, identity: Identity, heard: Overheard) -> None:
        super().__init__(identity._key)
        self._heard = heard

    def sign(self, *, kind: str, digest: bytes, body: bytes) -> bytes:
        if kind == "fragment":
            self._heard.note(digest, decode_body(m.Draft, body))
        return super().sign(kind=kind, digest=digest, body=body)


STRANGER: Final = Identity.from_seed(b"\x77" * 32)


def certain_garbage(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    yield liar.fragment(followed, liar.guesses())


def wide_garbage(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    for token in range(liar.vocab_tokens):
        yield liar.fragment(followed, (token, *liar.guesses(2)))


def unknown_base(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    yield liar.fragment(followed, liar.guesses(), base=liar.rng.randbytes(16))


def foreign_signature(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    """As a fragment of somebody else does that is sent again."""
    yield liar.fragment(followed, liar.guesses(), signer=STRANGER)


def broken_body(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    body = b"\xc1not a draft"
    yield m.Fragment(body, liar.identity.sign(kind="fragment", digest=followed.d_0, body=body))


def foreign_message(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    yield m.Commit(followed.number, 0, (1,), followed.digest, b"\x00", m.PassStats(0, 0, 0, 0))


def flood(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    for _ in range(FLOOD_FRAGMENTS):
        yield liar.fragment(followed, liar.guesses(8))


def silence(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    return ()


def no_such_token(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    yield liar.fragment(followed, (liar.vocab_tokens + 7,))


def replay(liar: Liar, followed: LiarRequest) -> Iterable[m.Message]:
    """Others' newest drafts as its own, with a confidence of 1."""
    for draft in islice(reversed(liar.overheard.drafts.get(followed.d_0, ())), 4):
        followed.fragments += 1
        nodes = NodeBlock.of([Node(node.parent, node.token, 1.0) for node in draft.nodes])
        stolen = m.Draft(followed.number, followed.fragments, draft.base, draft.position, nodes)
        body = encode_body(stolen)
        yield m.Fragment(body, liar.identity.sign(kind="fragment", digest=followed.d_0, body=body))


LIES: Final[dict[str, Lie]] = {
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
        no_such_token,
        replay,
    )
}
"""What a `Liar` can say, by name."""
