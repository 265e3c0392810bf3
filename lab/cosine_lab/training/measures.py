"""Figures of merit of speculative decoding, computed from what drafters would have guessed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Hits = list[bool]


@dataclass(frozen=True, slots=True)
class Scored:
    """One continuation by the target, and each drafter's distributions along it (tokens x vocabulary)."""

    written: Tensor
    guesses: dict[str, Tensor]

    def hits_within(self, drafter: str, best: int) -> Tensor:
        """Where the target's token is among the drafter's `best` likeliest."""
        likeliest = self.guesses[drafter].topk(best, dim=-1).indices
        return (likeliest == self.written[:, None]).any(dim=1)


def hit_rate(rows: Sequence[Hits]) -> float:
    """The share of tokens that were guessed, over all rows."""
    return sum(map(sum, rows)) / max(1, sum(map(len, rows)))


def tokens_per_verification(rows: Sequence[Hits], draft_tokens: int) -> float:
    """Tokens gained per pass of the target with chains of `draft_tokens`, its own token included."""
    return sum(map(len, rows)) / max(1, sum(_verifications(hits, draft_tokens) for hits in rows))


def expected_tokens(rows: Sequence[Sequence[float]], draft_tokens: int) -> float:
    """The same when each token is accepted with its own probability, averaged over every start."""
    totals = [_expected_from(row[start : start + draft_tokens]) for row in rows for start in range(len(row))]
    return sum(totals) / max(1, len(totals))


def fusion_hits(scored: Scored, expert: str, specialists: Sequence[str]) -> dict[str, Hits]:
    """Greedy hits of ways to combine drafters: bounds (`any`), picks, the mean, and trees."""
    everyone = list(scored.guesses)
    merged = {
        "any_spec": _any_of(scored, specialists, best=1),
        "any_all": _any_of(scored, everyone, best=1),
        "maxconf_spec": _most_confident(scored, specialists),
        "maxconf_all": _most_confident(scored, everyone),
        "vote_spec": _mean(scored, specialists),
        "tree2_expert": scored.hits_within(expert, 2),
        "tree2_spec": _any_of(scored, specialists, best=2),
        "tree4_expert": scored.hits_within(expert, 4),
    }
    return {name: hits.tolist() for name, hits in merged.items()}


def _verifications(hits: Hits, draft_tokens: int) -> int:
    position = passes = 0
    while position < len(hits):
        chain = hits[position : position + draft_tokens]
        accepted = chain.index(False) if False in chain else len(chain)
        position += accepted + 1
        passes += 1
    return passes


def _expected_from(accepts: Sequence[float]) -> float:
    expected = reached = 1.0
    for accept in accepts:
        reached *= accept
        expected += reached
    return expected


def _any_of(scored: Scored, drafters: Sequence[str], best: int) -> Tensor:
    return torch.stack([scored.hits_within(drafter, best) for drafter in drafters]).any(dim=0)


def _most_confident(scored: Scored, drafters: Sequence[str]) -> Tensor:
    likeliest = torch.stack([scored.guesses[drafter] for drafter in drafters]).max(dim=-1)
    surest = likeliest.values.argmax(dim=0, keepdim=True)
    return likeliest.indices.gather(0, surest)[0] == scored.written


def _mean(scored: Scored, drafters: Sequence[str]) -> Tensor:
    mixed = torch.stack([scored.guesses[drafter] for drafter in drafters]).mean(dim=0)
    return mixed.argmax(dim=-1) == scored.written
