"""Log-probabilities of tokens, as a client returns them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token; `text` has U+FFFD for invalid bytes, and `utf8` is empty for special tokens."""

    token_id: int
    text: str
    utf8: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LikelyToken(NamedToken):
    """A token with its natural log-probability."""

    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob(LikelyToken):
    """A token of a text with its log-probability, and the likeliest tokens at its place, the likeliest first.

    These are the target's, before sampling parameters, shaping and constraints.
    """

    top: tuple[LikelyToken, ...] = ()
