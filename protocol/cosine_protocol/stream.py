"""The messages of every stream: its start, heartbeats, errors, and the end of a request."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from cosine_protocol import fields as f
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.membership import Member, Revoked
from cosine_protocol.request import Request

VERSION = 1
MAX_FEATURES = 32  # Three times the present ones, of 64 bytes each.
MAX_AUTHORS = 64  # An author is one byte. A client asks eight drafters by default (decision 2).
RETRY_AFTER = f.Real(3600.0)  # An hour is as good as a refusal.

# Features (docs/protocol.md, section 3) without which a peer would take a request for another one.
SHAPING = "shaping"
CONSTRAINTS = "constraint"
LOGPROBS = "logprobs"


@f.message(1)
class Hello:
    """The first message on every stream, in both directions."""

    version: Annotated[int, f.Whole(255, 1)]
    features: Annotated[tuple[f.Label, ...], f.AtMost(MAX_FEATURES)]
    agent: f.Name


@f.message(2)
class Ping:
    """Heartbeat. The counts of passes and of fed prompt tokens distinguish a busy peer from a stalled one."""

    number: f.Number
    steps: f.Number
    prefill_tokens: f.Number


@f.message(3)
class Pong:
    number: f.Number


@f.message(4)
class Error:
    """A failure of one request, or of the stream if `number` is 0."""

    number: f.Number
    code: Annotated[int, f.Whole(255)]
    message: f.Sentence
    retry_after_s: Annotated[float, RETRY_AFTER] | None


class FinishReason(IntEnum):
    LENGTH = 0
    EOS = 1
    CANCELLED = 2


@dataclass(frozen=True, slots=True)
class Account:
    """The signed body of a `Final`: the last digest, output tokens, and accepted nodes per author index."""

    KIND: ClassVar = "final"
    MAX_BYTES: ClassVar = 2048

    number: f.Number
    reason: Annotated[int, f.Whole(2)]
    tokens: f.Position
    digest: f.Digest
    accepted: Annotated[tuple[f.Position, ...], f.AtMost(MAX_AUTHORS)]


@f.message(5)
class Final:
    """The signed end of a request. `body` decodes to an `Account`."""

    body: Annotated[bytes, f.Bytes(Account.MAX_BYTES)]
    signature: f.Signature


StreamMessage = Hello | Ping | Pong | Error | Member | Revoked


def features_of(request: Request) -> frozenset[str]:
    """The features without which a peer would take a request for another one."""
    sampling = request.sampling
    given = {SHAPING: sampling.shaping, CONSTRAINTS: sampling.constraint, LOGPROBS: request.logprobs}
    return frozenset(name for name, value in given.items() if value is not None)


def common_features(ours: tuple[str, ...], hello: Hello) -> frozenset[str]:
    """Features both ends have. Raises `MalformedMessage` for another major version."""
    if hello.version != VERSION:
        raise MalformedMessage(f"the peer speaks version {hello.version}, we speak {VERSION}")
    return frozenset(ours) & frozenset(hello.features)
