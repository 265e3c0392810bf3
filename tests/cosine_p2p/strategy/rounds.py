"""Rounds for the router to learn from, made from how likely each author is to be right."""

import random
from collections.abc import Mapping, Sequence

from cosine_p2p.strategy.router import DrafterFacts, HedgeRouter, Round

DRAFT_TOKENS = 4
HIT_CLAIM = 0.7
MISS_CLAIM = 0.05


def facts(*, prompt_nll: float = 1.0, token_s: float = 0.002, rtt_s: float = 0.03) -> DrafterFacts:
    return DrafterFacts(prompt_nll=prompt_nll, token_s=token_s, rtt_s=rtt_s)


def joined(router: HedgeRouter, *authors: int) -> HedgeRouter:
    for author in authors:
        router.join(author, facts())
    return router


def round_of(chosen: Sequence[int], right: Mapping[int, int]) -> Round:
    """A round in which the first chosen author was used and each got so many of its first tokens right."""
    known = {author: min(right[author] + 1, DRAFT_TOKENS) for author in chosen}
    return Round(
        authors=frozenset(chosen),
        likelihoods=tuple(
            {a: HIT_CLAIM if offset < right[a] else MISS_CLAIM for a in chosen if offset < known[a]}
            for offset in range(right[chosen[0]] + 1)
        ),
    )


def play(
    router: HedgeRouter, skill: Mapping[int, float], *, rounds: int, active: int, chance: random.Random
) -> list[tuple[int, ...]]:
    """Let a router pick and learn; an author gets each next token right with its skill. Returns its picks."""
    picks = []
    for _ in range(rounds):
        chosen = router.pick(active)
        right = {author: _streak(skill[author], chance) for author in chosen}
        router.learn(round_of(chosen, right))
        picks.append(chosen)
    return picks


def share_of(author: int, picks: Sequence[tuple[int, ...]]) -> float:
    """In how many of the rounds an author was used."""
    return sum(chosen[0] == author for chosen in picks) / len(picks)


def _streak(skill: float, chance: random.Random) -> int:
    streak = 0
    while streak < DRAFT_TOKENS and chance.random() < skill:
        streak += 1
    return streak
