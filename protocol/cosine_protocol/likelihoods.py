"""Likelihoods of tokens, which a verifier sends on request.

They are a log-softmax in float32 of the target's scores, before shaping and filters. The wire has the *surprisal*,
the negative logarithm, in millionths of a nat: an integer, so never NaN and never a probability above one.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Final

from cosine_protocol import limits
from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.fields import Items, Struct, Whole

UNITS_PER_NAT: Final = 1_000_000
SUM_SLACK: Final = 1e-4  # Rounding errors of a sum of probabilities were at most 1e-5.

Surprisal = Annotated[int, Whole(limits.MAX_SURPRISAL)]


def surprisal_of(log_probability: float) -> int:
    """The surprisal of a log-probability. The maximum for an impossible token."""
    if log_probability == -math.inf:
        return limits.MAX_SURPRISAL
    return min(limits.MAX_SURPRISAL, max(0, round(-log_probability * UNITS_PER_NAT)))


def log_probability_of(surprisal: int) -> float:
    return -surprisal / UNITS_PER_NAT if surprisal else 0.0


@dataclass(frozen=True, slots=True)
class TokenLikelihood:
    """One of the likeliest tokens at a position."""

    token: Annotated[int, Whole(limits.MAX_TOKEN_ID)]
    surprisal: Surprisal


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The surprisal of a token, and the likeliest tokens at its position in order."""

    surprisal: Surprisal
    top: Annotated[tuple[TokenLikelihood, ...], Items(Struct(TokenLikelihood), limits.MAX_TOP_LOGPROBS)]


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
        raise MalformedMessage(f"{len(told.top)} likeliest tokens were told, not {top}")


class LikelihoodDigest:
    """A BLAKE2b-128 over all likelihoods so far, which a transcript signs (docs/protocol.md, section 4)."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=limits.DIGEST_BYTES)

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
    told_tokens = new_tokens + prompt_tokens * of_prompt
    tokens_bytes = TOKEN_BYTES * (prompt_tokens + new_tokens)
    if tokens_bytes + told_tokens * (LIKELIHOOD_BYTES + LIKELY_TOKEN_BYTES * top) > limits.MAX_TOLD_BYTES:
        raise UsageError(
            f"The probabilities of {told_tokens} tokens, with {top} others each, are too many; "
            "ask for fewer of them, or for a shorter text."
        )


TOKEN_BYTES: Final = 5  # The most that a token id takes on the wire.
LIKELIHOOD_BYTES: Final = 7  # The most that a likelihood takes there without its likeliest tokens.
LIKELY_TOKEN_BYTES: Final = 11  # The most that one of these takes.
