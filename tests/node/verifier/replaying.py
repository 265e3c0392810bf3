"""Requests and claims without a client channel."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.served_request import KvState
from cosine_protocol.audit import AskAudit
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.identity import Identity, sign
from cosine_protocol.request import Request
from cosine_protocol.verify import Pacing, Transcript
from tests.node.peers import SERVER


@dataclass(frozen=True, slots=True)
class NoChannel:
    """A channel to which nothing may be posted."""

    peer_id: str

    def post(self, message: Message) -> bool:
        raise AssertionError(f"{message} was posted")


def unfed(request: Request, *, output: tuple[int, ...] = (), sequence: int = 0, number: int = 0) -> VerifierRequest:
    """A request before its first pass; smaller numbers were admitted first."""
    return VerifierRequest(
        NoChannel(request.client),
        number,
        request,
        KvState(sequence),
        list(output),
        signer=SERVER,
        pacing=Pacing.FREE,
        drafters=("a", "b", "c"),
        admission=number,
    )


def claim_of(
    request: Request, tokens: Sequence[int], *, first: int = 0, number: int = 3, author: Identity = SERVER
) -> AskAudit:
    """A claim about a stream, signed by its author."""
    d_0 = request_digest(request)
    transcript = Transcript(first, len(tokens), roll_digest(d_0, tokens))
    return AskAudit(number, request, tuple(tokens), author.peer_id, sign(author, transcript, digest=d_0))
