"""The facts that decide who drafts for one request: what is known of a drafter, and what became of a round."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """The facts known of a drafter before it drafts.

    `prompt_nll` is its mean negative log-likelihood of the prompt, nats a token; `token_s` its time for one drafted
    token; `rtt_s` the round trip to it.
    """

    prompt_nll: float
    token_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The outcome of one round of drafts from the committed prefix.

    `authors` are those that drafted. `likelihoods` has one entry for each committed token: the probability that
    every author which drafted there gave it.
    """

    authors: frozenset[int]
    likelihoods: tuple[Mapping[int, float], ...]
