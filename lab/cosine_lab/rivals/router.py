"""The interface of routers that are compared: each decides who drafts for one request, from earlier rounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from cosine_p2p.strategy.router import DrafterFacts, Round
from cosine_protocol.noise import GAMMA, MASK, mix64


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRound(Round):
    """A round in which drafts were judged token by token; a strategy fills in what its router reads.

    `used` are the authors whose drafts were verified; the mappings also hold authors that drafted from the same
    prefix without being verified. `accepted` counts an author's own tokens that the committed text confirms, of
    `drafted`; `draft_s` is the time they took. `confidence` is its mean draft probability of its own tokens,
    `agreement` the part of them equal to the committed token at their position.
    """

    likelihoods: tuple[Mapping[int, float], ...] = ()
    used: frozenset[int] = frozenset()
    accepted: Mapping[int, int] = field(default_factory=dict)
    drafted: Mapping[int, int] = field(default_factory=dict)
    draft_s: Mapping[int, float] = field(default_factory=dict)
    confidence: Mapping[int, float] = field(default_factory=dict)
    agreement: Mapping[int, float] = field(default_factory=dict)


class Router(Protocol):
    """Chooses the authors of one request. `pick` may draw random numbers but learns nothing."""

    @property
    def name(self) -> str: ...

    def join(self, author: int, facts: DrafterFacts) -> None:
        """Make an author available."""
        ...

    def leave(self, author: int) -> None:
        """Forget an author; one that is not present is ignored."""
        ...

    def pick(self, count: int) -> tuple[int, ...]:
        """Up to `count` different present authors that should draft next, the best first."""
        ...

    def learn(self, round_: JudgedRound) -> None:
        """Take in what became of a round; authors that have left are ignored."""
        ...

    def why(self, author: int) -> str:
        """The reasons for or against a present author, for people."""
        ...


class Chance(Protocol):
    """The random numbers a router may draw; `random.Random` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Uniform over 0 ... `stop` - 1."""
        ...


def prompt_shares(facts: Mapping[int, DrafterFacts]) -> dict[int, float]:
    """Likelihood of the prompt, per token, by that of the author that predicted it best: in (0, 1]."""
    nearest = min((known.prompt_nll for known in facts.values()), default=0.0)
    return {author: math.exp(nearest - known.prompt_nll) for author, known in facts.items()}


def shuffled(authors: list[int], chance: Chance) -> list[int]:
    """The authors in a random order (Fisher and Yates)."""
    order = list(authors)
    for last in range(len(order) - 1, 0, -1):
        other = chance.randrange(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


UNIT: Final = 2.0**-53
"""The distance of the floats that 53 random bits can give in [0, 1)."""


class RequestChance:
    """Implements `published.router.Chance`: the splitmix64 stream that starts at the digest of a request."""

    def __init__(self, digest: bytes) -> None:
        self._state = int.from_bytes(digest[:8], "big")

    def random(self) -> float:
        self._state = (self._state + GAMMA) & MASK
        return (mix64(self._state) >> 11) * UNIT

    def randrange(self, stop: int, /) -> int:
        return int(self.random() * stop)
