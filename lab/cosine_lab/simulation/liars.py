"""Dishonest drafters on the in-memory network, to show that they cannot change a text.

A `Liar` has no model: it answers every assignment and commit with a lie, some with drafts that it overheard from
honest drafters. The deliberately late drafter (`LATE`) is a regular drafter service on a `SimulatedMachine` with
`extra_s`.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import (
    BASE,
    DRAFT,
    Advance,
    Assign,
    Draft,
    Fragment,
    Node,
    NodeBlock,
    Release,
    Start,
    Started,
)
from cosine_protocol.fields import decode_body, encode_body
from cosine_protocol.identity import Identity
from cosine_protocol.verify import Commit, PassStats

FLOOD_FRAGMENTS: Final = 60
"""Several times the messages of an honest drafter for one commit."""
MAX_OVERHEARD: Final = 256
"""Bounds memory: the newest drafts kept of one request."""
LATE: Final = "late"
"""The lie of drafting honestly, but more slowly than announced."""
STRANGER: Final = Identity.from_seed(b"\x77" * 32)
"""A peer outside the swarm, which signs the fragments of `foreign_signature`."""


@dataclass(slots=True)
class LiarRequest:
    """A request assigned to a liar: its digest `d_0` and that of its committed prefix, `digest`."""

    number: int
    d_0: bytes
    digest: bytes
    position: int
    fragments: int = 0


Lie = Callable[["Liar", LiarRequest], Iterable[Message]]


class Liar:
    """Serves `/cosine/draft` and answers every assignment and commit with the messages of one lie.

    It states `prompt_nll` as its loss on every prompt; `overheard` are the drafts of others that it can copy.
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
        self.requests: dict[int, LiarRequest] = {}

    async def handle(self, stream: Stream) -> None:
        await serve_channel(stream, DRAFT, self.receive)

    def receive(self, channel: Channel, message: Message) -> None:
        """Handle one message of a client."""
        match message:
            case Start(number, request, committed):
                d_0 = message.d_0 or request_digest(request)
                digest = roll_digest(d_0, committed)
                self.requests[number] = LiarRequest(number, d_0, digest, len(committed))
                channel.post(Started(number, self._prompt_nll, 100))
            case Assign(number):
                if number in self.requests:
                    self._send_lies(channel, self.requests[number])
            case Advance(number, position, tokens) if number in self.requests:
                known = self.requests[number]
                new = tokens[max(0, known.position - position) :]
                known.digest = roll_digest(known.digest, new)
                known.position += len(new)
                self._send_lies(channel, known)
            case Release(number):
                self.requests.pop(number, None)
            case _:
                return

    def _send_lies(self, channel: Channel, request: LiarRequest) -> None:
        for message in self._lie(self, request):
            channel.post(message)

    def guesses(self, count: int = 4) -> tuple[int, ...]:
        """Return random tokens."""
        return tuple(self.rng.randrange(self.vocab_tokens) for _ in range(count))

    def fragment(
        self,
        request: LiarRequest,
        tokens: Sequence[int],
        *,
        base: bytes | None = None,
        signer: Identity | None = None,
    ) -> Fragment:
        """Return a signed chain of tokens, each with a draft probability of 1."""
        request.fragments += 1
        nodes = tuple(Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens))
        draft = Draft(
            request.number, request.fragments, base or request.digest, request.position, NodeBlock.of(nodes)
        )
        body = encode_body(draft)
        signature = (signer or self.identity).sign(kind="fragment", digest=request.d_0, body=body)
        return Fragment(body, signature)


@dataclass(slots=True)
class Overheard:
    """The last drafts that honest drafters signed, by request digest."""

    drafts: dict[bytes, deque[Draft]] = field(default_factory=dict)

    def add(self, d_0: bytes, draft: Draft) -> None:
        self.drafts.setdefault(d_0, deque(maxlen=MAX_OVERHEARD)).append(draft)


class OverheardIdentity(Identity):
    """An honest drafter's identity that shows every signed draft to a liar."""

    def __init__(self, identity: Identity, overheard: Overheard) -> None:
        super().__init__(identity._key)
        self._overheard = overheard

    def sign(self, *, kind: str, digest: bytes, body: bytes) -> bytes:
        if kind == "fragment":
            self._overheard.add(digest, decode_body(Draft, body))
        return super().sign(kind=kind, digest=digest, body=body)


def certain_garbage(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send random tokens, all with a draft probability of 1."""
    yield liar.fragment(request, liar.guesses())


def wide_garbage(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a chain for every token of the vocabulary, one of which begins right."""
    for token in range(liar.vocab_tokens):
        yield liar.fragment(request, (token, *liar.guesses(2)))


def unknown_base(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a draft below an unknown prefix."""
    yield liar.fragment(request, liar.guesses(), base=liar.rng.randbytes(16))


def foreign_signature(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a fragment signed by another peer, as in a replay."""
    yield liar.fragment(request, liar.guesses(), signer=STRANGER)


def broken_body(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a well signed body that is not a draft."""
    body = b"\xc1not a draft"
    yield Fragment(body, liar.identity.sign(kind="fragment", digest=request.d_0, body=body))


def foreign_message(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a commit, which only a verifier may send."""
    yield Commit(request.number, 0, (1,), request.digest, b"\x00", PassStats(0, 0, 0))


def flood(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send more fragments than can be used."""
    for _ in range(FLOOD_FRAGMENTS):
        yield liar.fragment(request, liar.guesses(8))


def silence(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send nothing."""
    return ()


def no_such_token(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send a token outside the vocabulary."""
    yield liar.fragment(request, (liar.vocab_tokens + 7,))


def replay(liar: Liar, request: LiarRequest) -> Iterable[Message]:
    """Send the newest drafts of others under its own signature, with a draft probability of 1."""
    for draft in islice(reversed(liar.overheard.drafts.get(request.d_0, ())), 4):
        request.fragments += 1
        nodes = NodeBlock.of([Node(node.parent, node.token, 1.0) for node in draft.nodes])
        stolen = Draft(request.number, request.fragments, draft.base, draft.position, nodes)
        body = encode_body(stolen)
        yield Fragment(body, liar.identity.sign(kind="fragment", digest=request.d_0, body=body))


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
"""All lies of a `Liar`, by name."""
