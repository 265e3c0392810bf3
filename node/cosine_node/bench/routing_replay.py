"""Rounds of drafting and verifying one request, replayed on recorded generations with a router in charge.

A round: the active drafters draft a chain of `DRAFT_TOKENS` first choices from the committed prefix, the chain of
the router's first pick is verified, what it got right and one token more are committed. A bandit learns from the
used chain alone and pays for one drafter; routers that learn from everyone who drafted may have others active
beside the used one. Nothing is known of an author below its first miss, so it is silent there.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from statistics import fmean
from typing import Final

from cosine_node.simulation.traces import DrafterTrace, Trace, splice
from cosine_p2p.routing.base import DrafterFacts, Round, Router
from cosine_protocol.errors import UsageError

DRAFT_TOKENS: Final = 4
REQUEST_TOKENS: Final = 192
LATE_TOKENS: Final = 64
"""Where the long run of a request begins, and where a request that changes domain does so."""
TOKEN_S: Final = 0.002
RTT_S: Final = 0.03
"""All drafters are equally fast and near here: what is measured is who predicts the text."""


@dataclass(frozen=True, slots=True)
class Voice:
    """What one drafter says along a request. `runs[i]` counts its first choices in a row that hit from i on.

    `claims[i]` is the claim of its first choice, `likelihoods[i]` that of the token the target wrote, 0 if it is
    not among the candidates, in both cases scaled down where all claims exceed 1.
    """

    runs: tuple[int, ...]
    claims: tuple[float, ...]
    likelihoods: tuple[float, ...]
    prompt_nll: float

    @classmethod
    def of(cls, stream: Sequence[int], trace: DrafterTrace) -> "Voice":
        """From the drafter's part of a trace."""
        candidates = trace.candidate_tokens.tolist()
        claims = [_scaled(row) for row in trace.candidate_probabilities.tolist()]
        hits = [row[0] == token for row, token in zip(candidates, stream, strict=True)]
        runs = accumulate(reversed(hits), lambda run, hit: run + 1 if hit else 0, initial=0)
        rows = zip(candidates, claims, stream, strict=True)
        return cls(
            tuple(runs)[:0:-1],
            tuple(row[0] for row in claims),
            tuple(dict(zip(tokens, claim, strict=True)).get(token, 0.0) for tokens, claim, token in rows),
            trace.prompt_nll,
        )


def _scaled(claims: Sequence[float]) -> list[float]:
    total = max(1.0, sum(claims))
    return [claim / total for claim in claims]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its domains with the position at which each begins, and what each author says along it."""

    tokens: int
    domains: tuple[tuple[int, str], ...]
    voices: Mapping[int, Voice]
    models: Mapping[int, str]

    @classmethod
    def of(cls, trace: Trace, chance: random.Random, *, change_at: int = 0) -> "Request":
        """From a trace; author numbers are given in a random order, so that none of them is favoured."""
        names = trace.domain.split("+")
        models = sorted(trace.drafters)
        chance.shuffle(models)
        return cls(
            len(trace.stream),
            tuple(zip((0, change_at), names, strict=False)),
            {number: Voice.of(trace.stream, trace.drafters[model]) for number, model in enumerate(models, 1)},
            dict(enumerate(models, 1)),
        )

    @property
    def facts(self) -> dict[int, DrafterFacts]:
        """What a router is told of every author before the first round."""
        return {
            author: DrafterFacts(prompt_nll=voice.prompt_nll, token_s=TOKEN_S, rtt_s=RTT_S)
            for author, voice in self.voices.items()
        }

    def expert_at(self, position: int) -> int:
        """The author whose model was made for the domain at a position, 0 if there is none."""
        domain = next(domain for start, domain in reversed(self.domains) if start <= position)
        return next((author for author, model in self.models.items() if model.endswith(f"-{domain}")), 0)


@dataclass(frozen=True, slots=True)
class Step:
    """One verified round: where it began, whose draft was used, and how many of its tokens were accepted."""

    position: int
    used: int
    accepted: int


def replay(router: Router, request: Request, *, active: int) -> tuple[Step, ...]:
    """All rounds of a request with up to `active` drafters at work. Raises `UsageError` if nobody is picked."""
    for author, facts in request.facts.items():
        router.join(author, facts)
    steps = []
    position = 0
    while position < request.tokens:
        chosen = router.pick(active)
        if not chosen:
            raise UsageError(f"The router {router.name} picks no drafter.")
        left = request.tokens - position
        accepted = min(request.voices[chosen[0]].runs[position], DRAFT_TOKENS, left)
        steps.append(Step(position, chosen[0], accepted))
        committed = min(accepted + 1, left)
        router.learn(round_of(request, chosen, position, committed))
        position += committed
    return tuple(steps)


def round_of(request: Request, chosen: Sequence[int], position: int, committed: int) -> Round:
    """What a router is told of a round in which `chosen` drafted from `position` and the first was used."""
    left = request.tokens - position
    voices = {author: request.voices[author] for author in chosen}
    right = {author: min(voice.runs[position], DRAFT_TOKENS, left) for author, voice in voices.items()}
    known = {author: min(right[author] + 1, DRAFT_TOKENS, left) for author in chosen}
    judged = min(DRAFT_TOKENS, committed)
    return Round(
        used=frozenset(chosen[:1]),
        accepted={author: min(right[author], committed) for author in chosen},
        drafted=dict.fromkeys(chosen, DRAFT_TOKENS),
        draft_s=dict.fromkeys(chosen, DRAFT_TOKENS * TOKEN_S),
        confidence={a: fmean(voices[a].claims[position : position + known[a]]) for a in chosen},
        agreement={author: min(right[author], judged) / judged for author in chosen},
        spoken=tuple(
            {a: voices[a].likelihoods[position + offset] for a in chosen if offset < known[a]}
            for offset in range(committed)
        ),
    )


def mixed_traffic(traces: Sequence[Trace], *, per_domain: int, seed: int) -> list[Request]:
    """Requests of every domain in random order, `REQUEST_TOKENS` long; short generations are continued."""
    chance = random.Random(seed)
    pools = _pools(traces)
    made = [
        Request.of(trace, chance)
        for pool in pools.values()
        for trace in _long(pool, REQUEST_TOKENS, chance, per_domain)
    ]
    chance.shuffle(made)
    return made


def changing_traffic(traces: Sequence[Trace], *, per_domain: int, seed: int) -> list[Request]:
    """Requests that after `LATE_TOKENS` tokens go on in another domain, `REQUEST_TOKENS` long in all."""
    chance = random.Random(seed)
    pools = _pools(traces)
    made = []
    for domain, pool in pools.items():
        others = sorted(pools.keys() - {domain})
        for first in _long(pool, LATE_TOKENS + 1, chance, per_domain):
            rest = REQUEST_TOKENS - LATE_TOKENS
            [second] = _long(pools[chance.choice(others)], rest, chance, 1)
            whole = splice(first, second, at=LATE_TOKENS, number=first.number)
            made.append(Request.of(whole, chance, change_at=LATE_TOKENS))
    chance.shuffle(made)
    return made


def _pools(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    pools: dict[str, list[Trace]] = {}
    for trace in traces:
        if len(trace.stream) > trace.is_finished:
            pools.setdefault(trace.domain, []).append(trace)
    return pools


def _long(pool: Sequence[Trace], tokens: int, chance: random.Random, count: int) -> Iterator[Trace]:
    """Traces of one domain with exactly so many tokens, each begun by another one and continued by random ones."""
    for opening in chance.sample(pool, min(count, len(pool))):
        parts = [opening]
        while sum(len(part.stream) - part.is_finished for part in parts) < tokens:
            parts.append(chance.choice(pool))
        yield reduce(_continued, parts).shortened(tokens)


def _continued(first: Trace, second: Trace) -> Trace:
    return splice(first, second, at=len(first.stream) - first.is_finished, number=first.number)
