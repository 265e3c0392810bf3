"""`/cosine/verify`: a verifier commits tokens of a text, with transcripts and likelihoods. Pure.

Likelihoods are a log-softmax in float32 of the target's scores, before shaping and filters. The wire has the
*surprisal*, the negative logarithm, in millionths of a nat: an integer, so never NaN and never a probability above
one.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated, ClassVar, Final

from cosine_protocol import draft, stream
from cosine_protocol import fields as f
from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.identity import Signed
from cosine_protocol.request import MAX_TOP_LOGPROBS, Request
from cosine_protocol.stream import MAX_AUTHORS, StreamMessage

VERIFY: Final = "/cosine/verify/2.0.0"

HOME_AUTHOR: Final = 255  # Nodes of a verifier's own drafter; above `MAX_AUTHORS`.
FORCED_AUTHOR: Final = 254  # Nodes that a verifier drafted because the constraint forces them.
TRANSCRIPT_EVERY_TOKENS: Final = 32
"""At most 31 tokens of an abandoned stream are unsigned; a transcript of 100 bytes adds three bytes per token."""
CACHE_SCOPE_BYTES: Final = 16  # 128 random bits cannot be guessed.
USER_BYTES: Final = 8  # The first bytes of a cache scope, which identify a user.
MAX_PREDICTION_TOKENS: Final = f.MAX_PROMPT_TOKENS // 4
"""A file of some thousand lines. Its 160 KiB fit into a frame with the longest prompt, 640 KiB, and constraint."""
MAX_TOLD_BYTES: Final = 900_000  # An audit with all likelihoods of a request fits a frame.
MAX_TOLD_TOKENS: Final = draft.MAX_COMMIT_TOKENS  # The maximum of a commit.
MAX_SURPRISAL: Final = 1_000_000_000  # A thousand nats in millionths: practically impossible.
UNITS_PER_NAT: Final = 1_000_000
SUM_SLACK: Final = 1e-4  # Rounding errors of a sum of probabilities were at most 1e-5.
TOKEN_BYTES: Final = 5  # The maximum encoding of a token id.
LIKELIHOOD_BYTES: Final = 7  # The maximum encoding of a likelihood without its likeliest tokens.
LIKELY_TOKEN_BYTES: Final = 11  # The maximum encoding of one of these.

AuthorIndices = Annotated[bytes, f.Bytes(draft.MAX_TREE_NODES)]
Surprisal = Annotated[int, f.Whole(MAX_SURPRISAL)]


@dataclass(frozen=True, slots=True)
class TokenLikelihood:
    """One of the likeliest tokens at a position."""

    token: f.Token
    surprisal: Surprisal


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The surprisal of a token, and the likeliest tokens at its position in order."""

    surprisal: Surprisal
    top: Annotated[tuple[TokenLikelihood, ...], f.AtMost(MAX_TOP_LOGPROBS)]


Likelihoods = tuple[Likelihood, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A verifier's statement that it committed the output positions from `first` to `tokens` - 1.

    `digest` is that of the prefix after `tokens` output tokens, `told` that of the sent likelihoods.
    """

    KIND: ClassVar = "transcript"
    MAX_BYTES: ClassVar = 64

    first: f.Position
    tokens: f.Position
    digest: f.Digest
    told: f.Digest | None = None


class Pacing(IntEnum):
    """`FREE`: the verifier may add its own drafts. `PLAIN`: it adds none. It never waits for drafts."""

    FREE = 0
    PLAIN = 1


@f.message(16)
class Open:
    """Ask a verifier to continue after `committed`. Requests of one `cache_scope` share cached prefixes.

    `prediction` is the output that the client expects, from which the verifier may draft.
    """

    number: f.Number
    request: Request
    committed: draft.CommittedTokens
    pacing: Annotated[int, f.Whole(1)]
    authors: Annotated[tuple[f.PeerId, ...], f.AtMost(MAX_AUTHORS)]
    cache_scope: Annotated[bytes, f.exactly(CACHE_SCOPE_BYTES)] | None = None
    prediction: Annotated[tuple[f.Token, ...], f.AtMost(MAX_PREDICTION_TOKENS)] | None = None


@f.message(17)
class Opened:
    """The verifier accepts. `pass_us` is for one token; drafts pay above an acceptance of `break_even` permille."""

    number: f.Number
    pass_us: f.Microseconds
    break_even: Annotated[int, f.Whole(1000)] | None = None


@f.message(18)
class Tree:
    """Draft nodes for the live tree. `authors[i]` is 1 + the index in `Open.authors` of node i's author."""

    number: f.Number
    base: f.Digest
    position: f.Position
    nodes: draft.NodeBlock
    authors: AuthorIndices


@dataclass(frozen=True, slots=True)
class PassStats:
    """Statistics of a pass: fed nodes, committed near ties, time; in the first one cached prompt tokens."""

    nodes: Annotated[int, f.Whole(draft.MAX_TREE_NODES)]
    near_ties: Annotated[int, f.Whole(draft.MAX_COMMIT_TOKENS)]
    pass_us: f.Microseconds
    cached_tokens: Annotated[int, f.Whole(f.MAX_PROMPT_TOKENS)] | None = None


@f.message(21)
class Commit:
    """Output tokens from `position` on, and the digest after them.

    `authors` has one byte per token: 0 for the target's own, else the author of the node.
    """

    number: f.Number
    position: f.Position
    tokens: draft.CommitTokens
    digest: f.Digest
    authors: AuthorIndices
    stats: PassStats
    transcript: Signed[Transcript] | None = None
    likelihoods: Annotated[Likelihoods, f.AtMost(draft.MAX_COMMIT_TOKENS)] | None = None


@f.message(28)
class PromptLikelihoods:
    """The likelihoods of the prompt tokens from index `position` on."""

    number: f.Number
    position: Annotated[int, f.Whole(f.MAX_PROMPT_TOKENS, 1)]
    likelihoods: Annotated[Likelihoods, f.AtMost(MAX_TOLD_TOKENS)]


@f.message(22)
class Cancel:
    number: f.Number


@f.message(23)
class Delegate:
    """The client asks the verifier to coordinate the drafters in `Open.authors`."""

    number: f.Number
    mandate: Signed[draft.Mandate]


@f.message(24)
class Declined:
    """The verifier does not coordinate the request, but continues to serve it."""

    number: f.Number
    message: f.Sentence


@f.message(25)
class Revoke:
    """The client ends the coordination by the verifier."""

    number: f.Number


@f.message(26)
class Credit:
    """Proof of an accepted draft: `body` decodes to a `Draft` signed by that author."""

    number: f.Number
    author: Annotated[int, f.Whole(MAX_AUTHORS, 1)]
    body: Annotated[bytes, f.Bytes(draft.Draft.MAX_BYTES)]
    signature: f.Signature


@f.message(27)
class Report:
    """A delegate's decision about a drafter of `nodes` (author 0: their total); `offered` tokens had drafts."""

    number: f.Number
    author: Annotated[int, f.Whole(MAX_AUTHORS)]
    nodes: f.Number
    rtt_us: f.Microseconds
    why: f.Name
    offered: f.Position | None = None


VerifyMessage = (
    StreamMessage | Open | Opened | Tree | Commit | PromptLikelihoods | Cancel | Delegate | Declined | Revoke
    | Credit | Report | stream.Final
)  # fmt: skip


def is_transcript_due(*, before: int, after: int, has_ended: bool) -> bool:
    """True for a commit from `before` to `after` output tokens that must carry a transcript."""
    return has_ended or before // TRANSCRIPT_EVERY_TOKENS < after // TRANSCRIPT_EVERY_TOKENS


def surprisal_of(log_probability: float) -> int:
    """The surprisal of a log-probability. The maximum for an impossible token."""
    if log_probability == -math.inf:
        return MAX_SURPRISAL
    return min(MAX_SURPRISAL, max(0, round(-log_probability * UNITS_PER_NAT)))


def log_probability_of(surprisal: int) -> float:
    return -surprisal / UNITS_PER_NAT if surprisal else 0.0


def check_likelihood(told: Likelihood, token: int, *, top: int) -> None:
    """Raise `MalformedMessage` if `told` is impossible for this token with `top` likeliest ones."""
    surprisals = [each.surprisal for each in told.top]
    if surprisals != sorted(surprisals) or len({each.token for each in told.top}) < len(told.top):
        raise MalformedMessage("the likeliest tokens are in no order")
    own = {each.token: each.surprisal for each in told.top}.get(token)
    if own is not None and own != told.surprisal:
        raise MalformedMessage("a token has two probabilities")
    if own is None and surprisals and told.surprisal < surprisals[-1]:
        raise MalformedMessage("a token is likelier than the likeliest")
    different = surprisals if own is not None else [told.surprisal, *surprisals]
    everything = math.fsum(math.exp(log_probability_of(surprisal)) for surprisal in different)
    if everything > 1 + SUM_SLACK:
        raise MalformedMessage("probabilities are more than one in all")
    # Fewer are possible only for a whole vocabulary.
    if len(told.top) > top or (len(told.top) < top and everything < 1 - SUM_SLACK):
        raise MalformedMessage(f"{len(told.top)} likeliest tokens were sent, not {top}")


class LikelihoodDigest:
    """A BLAKE2b-128 over all likelihoods so far, which a transcript signs (docs/protocol.md, section 4)."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=f.DIGEST_BYTES)

    def add(self, told: Sequence[Likelihood]) -> None:
        for each in told:
            numbers = [number for likely in each.top for number in (likely.token, likely.surprisal)]
            self._hash.update(struct.pack(f">{2 + len(numbers)}I", each.surprisal, len(each.top), *numbers))

    def digest(self) -> bytes:
        return self._hash.digest()


def told_digest(told: Sequence[Likelihood]) -> bytes:
    """The digest of all likelihoods of a text."""
    digest = LikelihoodDigest()
    digest.add(told)
    return digest.digest()


def check_room(*, prompt_tokens: int, new_tokens: int, top: int, of_prompt: bool) -> None:
    """Raise `UsageError` where the likelihoods could not be audited in one message."""
    likelihoods = new_tokens + prompt_tokens * of_prompt
    tokens_bytes = TOKEN_BYTES * (prompt_tokens + new_tokens)
    if tokens_bytes + likelihoods * (LIKELIHOOD_BYTES + LIKELY_TOKEN_BYTES * top) > MAX_TOLD_BYTES:
        raise UsageError(
            f"The probabilities of {likelihoods} tokens, with {top} others each, are too many; "
            "ask for fewer of them, or for a shorter text."
        )
