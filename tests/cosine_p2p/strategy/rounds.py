"""Rounds for routers to learn from, made from how likely each author is to be right."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from cosine_lab.rivals.router import JudgedRound, Router
from cosine_p2p.strategy.router import DrafterFacts

DRAFT_TOKENS = 4
HIT_CLAIM = 0.7
MISS_CLAIM = 0.05

R = TypeVar("R", bound=Router)


def facts(*, prompt_nll: float = 1.0, token_s: float = 0.002, rtt_s: float = 0.03) -> DrafterFacts:
    return DrafterFacts(prompt_nll=prompt_nll, token_s=token_s, rtt_s=rtt_s)


def joined(router: R, *authors: int) -> R:
    for author in authors:
        router.join(author, facts())
    return router


def round_of(chosen: Sequence[int], right: Mapping[int, int]) -> JudgedRound:
    """A round in which the first chosen author was used and each got so many of its first tokens right."""
    committed = right[chosen[0]] + 1
    known = {author: min(right[author] + 1, DRAFT_TOKENS) for author in chosen}
    return JudgedRound(
        authors=frozenset(chosen),
        used=frozenset(chosen[:1]),
        accepted={author: min(right[author], committed) for author in chosen},
        drafted=dict.fromkeys(chosen, DRAFT_TOKENS),
        draft_s=dict.fromkeys(chosen, 0.008),
        confidence=dict.fromkeys(chosen, 0.5),
        agreement={author: min(right[author], committed) / min(DRAFT_TOKENS, committed) for author in chosen},
        likelihoods=tuple(
            {a: HIT_CLAIM if offset < right[a] else MISS_CLAIM for a in chosen if offset < known[a]}
            for offset in range(committed)
        ),
    )


def play(
    router: Router, skill: Mapping[int, float], *, rounds: int, active: int, chance: random.Random
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
