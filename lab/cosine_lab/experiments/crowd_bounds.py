"""Bounds that the devices set a crowd: verifiers that never idle, with drafts always at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from cosine_lab.experiments.cooperation_replay import drafters_of, replay_fused
from cosine_lab.experiments.experiment import DRAFTER_DOMAINS, shipped_traces
from cosine_lab.simulation.workload import TEST_SPLIT
from cosine_node.engine.curve import CostCurve

NODES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""A choice: draft nodes of a request in a pass; with more than 24 no cost curve here gains."""
ALWAYS_RIGHT: Final[Mapping[int, float]] = {count: float(count) for count in NODES}
"""The gains of drafters that are always right, by nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBound:
    """The best composition of a pass: `nodes` draft nodes for each request, with which it commits `tokens`."""

    nodes: int
    tokens: float
    pass_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.pass_s


def best_pass(curve: CostCurve, *, requests: int, gains: Mapping[int, float], budget_tokens: int) -> PassBound:
    """The composition with the most tokens a second; `gains[k]` are accepted tokens of k nodes of a request."""
    bounds = [
        PassBound(nodes=k, tokens=requests * (1.0 + gain), pass_s=curve.seconds(requests * (1 + k)))
        for k, gain in gains.items()
        if k == 0 or requests * (1 + k) <= budget_tokens
    ]
    return max(bounds, key=lambda bound: bound.tokens_per_s)


@cache
def measured_gains(temperature: float, *, prompts: int) -> Mapping[int, float]:
    """Accepted tokens per pass by nodes: the most probable of what a drafter of every kind drafts, fused."""
    traces = shipped_traces().select(split=TEST_SPLIT, temperature=temperature)[:prompts]
    gains = {0: 0.0}
    for nodes in NODES[1:]:
        drafters = dict(enumerate(drafters_of(sorted(DRAFTER_DOMAINS), traces).values(), 1))
        counts = [replay_fused(drafters, trace, budget=nodes) for trace in traces]
        gains[nodes] = sum(count.accepted for count in counts) / sum(count.rounds for count in counts)
    return gains
