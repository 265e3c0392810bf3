"""Rounds of drafting and verifying one request, replayed on recorded generations with a router in charge.

A round: the active drafters draft a chain of `DRAFT_TOKENS` first choices from the committed prefix, the chain of
the router's first pick is verified, what it got right and one token more are committed. A bandit learns from the
used chain alone and pays for one drafter; routers that learn from everyone who drafted may have others active
beside the used one. Nothing is known of an author below its first miss, so it has no probabilities there.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Final

from cosine_lab.rivals.router import JudgedRound, Router
from cosine_lab.simulation.traces import DrafterTrace, Trace, splice
from cosine_p2p.strategy.router import DrafterFacts
from cosine_protocol.errors import UsageError

# Choices: a short chain, requests of two recorded lengths and a half, all of which begin in one domain.
DRAFT_TOKENS: Final = 4
REQUEST_TOKENS: Final = 192
LATE_TOKENS: Final = 64
"""Where the long run of a request begins, and where a request that changes domain does so."""
# All drafters are equally fast and near here: what is measured is who predicts the text.
TOKEN_S: Final = 0.002
RTT_S: Final = 0.03


@dataclass(frozen=True, slots=True)
class RecordedChain:
    """The first choices of one drafter along a request. `runs[i]` counts those in a row that hit from i on.

    `first[i]` is the draft probability of its first choice, `likelihoods[i]` that of the token the target wrote, 0
    if it is not among the candidates, in both cases scaled down where all candidates together exceed 1.
    """

    runs: tuple[int, ...]
    first: tuple[float, ...]
    likelihoods: tuple[float, ...]
    prompt_nll: float

    @classmethod
    def of(cls, stream: Sequence[int], trace: DrafterTrace) -> "RecordedChain":
        """From the drafter's part of a trace."""
        candidates = trace.candidate_tokens.tolist()
        probabilities = []
        for given in trace.candidate_probabilities.tolist():
            total = max(1.0, sum(given))
            probabilities.append([one / total for one in given])
        hits = [row[0] == token for row, token in zip(candidates, stream, strict=True)]
        runs = accumulate(reversed(hits), lambda run, hit: run + 1 if hit else 0, initial=0)
        rows = zip(candidates, probabilities, stream, strict=True)
        return cls(
            tuple(runs)[:0:-1],
            tuple(row[0] for row in probabilities),
            tuple(dict(zip(tokens, given, strict=True)).get(token, 0.0) for tokens, given, token in rows),
            trace.prompt_nll,
        )


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """One request: its domains with the position at which each begins, and the chain of each author along it."""

    tokens: int
    domains: tuple[tuple[int, str], ...]
    chains: Mapping[int, RecordedChain]
    models: Mapping[int, str]

    @classmethod
    def of(cls, trace: Trace, chance: random.Random, *, change_at: int = 0) -> "ReplayedRequest":
        """From a trace; author numbers are given in a random order, so that none of them is favoured."""
        names = trace.domain.split("+")
        models = sorted(trace.drafters)
        chance.shuffle(models)
        return cls(
            len(trace.stream),
            tuple(zip((0, change_at), names, strict=False)),
            {number: RecordedChain.of(trace.stream, trace.drafters[m]) for number, m in enumerate(models, 1)},
            dict(enumerate(models, 1)),
        )

    @property
    def facts(self) -> dict[int, DrafterFacts]:
        """The facts of every author that a router has before the first round."""
        return {
            author: DrafterFacts(prompt_nll=chain.prompt_nll, token_s=TOKEN_S, rtt_s=RTT_S)
            for author, chain in self.chains.items()
        }

    def expert_at(self, position: int) -> int:
        """The author whose model was made for the domain at a position, 0 if there is none."""
        domain = next(domain for start, domain in reversed(self.domains) if start <= position)
        return next((author for author, model in self.models.items() if model.endswith(f"-{domain}")), 0)


@dataclass(frozen=True, slots=True)
class ReplayedRound:
    """One verified round: where it began, whose draft was used, and how many of its tokens were accepted."""

    position: int
    used: int
    accepted: int


def replay(router: Router, request: ReplayedRequest, *, active: int) -> tuple[ReplayedRound, ...]:
    """All rounds of a request with up to `active` drafters at work. Raises `UsageError` if nobody is picked."""
    for author, facts in request.facts.items():
        router.join(author, facts)
    rounds = []
    position = 0
    while position < request.tokens:
        chosen = router.pick(active)
        if not chosen:
            raise UsageError(f"The router {router.name} picks no drafter.")
        left = request.tokens - position
        accepted = min(request.chains[chosen[0]].runs[position], DRAFT_TOKENS, left)
        rounds.append(ReplayedRound(position, chosen[0], accepted))
        committed = min(accepted + 1, left)
        router.learn(round_of(request, chosen, position, committed))
        position += committed
    return tuple(rounds)


def rounds_alone(request: ReplayedRequest, author: int) -> int:
    """The rounds of a replayed request whose only drafter is this author, of which no router learns anything."""
    runs = request.chains[author].runs
    rounds = position = 0
    while position < request.tokens:
        position += min(runs[position], DRAFT_TOKENS) + 1
        rounds += 1
    return rounds


def round_of(request: ReplayedRequest, chosen: Sequence[int], position: int, committed: int) -> JudgedRound:
    """A round as a router learns of it: `chosen` drafted from `position` and the first of them was used."""
    left = request.tokens - position
    chains = {author: request.chains[author] for author in chosen}
    right = {author: min(chain.runs[position], DRAFT_TOKENS, left) for author, chain in chains.items()}
    known = {author: min(right[author] + 1, DRAFT_TOKENS, left) for author in chosen}
    judged = min(DRAFT_TOKENS, committed)
    return JudgedRound(
        authors=frozenset(chosen),
        used=frozenset(chosen[:1]),
        accepted={author: min(right[author], committed) for author in chosen},
        drafted=dict.fromkeys(chosen, DRAFT_TOKENS),
        draft_s=dict.fromkeys(chosen, DRAFT_TOKENS * TOKEN_S),
        confidence={a: fmean(chains[a].first[position : position + known[a]]) for a in chosen},
        agreement={author: min(right[author], judged) / judged for author in chosen},
        likelihoods=tuple(
            {a: chains[a].likelihoods[position + offset] for a in chosen if offset < known[a]}
            for offset in range(committed)
        ),
    )


def mixed_traffic(traces: Sequence[Trace], *, per_domain: int, seed: int) -> list[ReplayedRequest]:
    """Requests of every domain in random order, `REQUEST_TOKENS` long; short generations are continued."""
    chance = random.Random(seed)
    made = [
        ReplayedRequest.of(trace, chance)
        for pool in _pools(traces).values()
        for trace in _long(pool, REQUEST_TOKENS, chance, per_domain)
    ]
    chance.shuffle(made)
    return made


def changing_traffic(traces: Sequence[Trace], *, per_domain: int, seed: int) -> list[ReplayedRequest]:
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
            made.append(ReplayedRequest.of(whole, chance, change_at=LATE_TOKENS))
    chance.shuffle(made)
    return made


def _pools(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    """By domain all traces but those that consist of an end token alone."""
    pools: dict[str, list[Trace]] = {}
    for trace in traces:
        if len(trace.stream) > trace.is_finished:
            pools.setdefault(trace.domain, []).append(trace)
    return pools


def _long(pool: Sequence[Trace], tokens: int, chance: random.Random, count: int) -> Iterator[Trace]:
    """Traces of one domain with exactly so many tokens, each begun by another one and continued by random ones."""
    for whole in chance.sample(pool, min(count, len(pool))):
        while len(whole.stream) - whole.is_finished < tokens:
            at = len(whole.stream) - whole.is_finished
            whole = splice(whole, chance.choice(pool), at=at, number=whole.number)
        yield whole.shortened(tokens)
