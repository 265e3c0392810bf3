"""The record of a text that a target has verified, as a drafter may learn from it. Pure."""

from dataclasses import dataclass
from typing import Final

from cosine_protocol.request import Sampling

NO_GUESS: Final = -1
"""Where the drafter had no first choice in time."""


@dataclass(frozen=True, slots=True)
class FailedBranch:
    """The drafter's own likeliest path where the target took another: tokens below the prefix of `position` output
    tokens, the first of them refused. `confidence` is the model's own estimate of the first, before calibration.
    """

    position: int
    tokens: tuple[int, ...]
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStream:
    """A text that a target has verified, with the drafter's first choice before each token, if it had one.

    `prompt` is what the drafter was shown of it.
    """

    client: str
    sampling: Sampling
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    guesses: tuple[int, ...]
    failed: tuple[FailedBranch, ...]
