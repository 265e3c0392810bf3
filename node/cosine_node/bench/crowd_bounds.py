"""What the devices allow a crowd at best: verifiers that never idle, with drafts always at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cosine_node.bench.cells import DOMAINS, TEST
from cosine_node.bench.cooperation_replay import (
    CandidateSource,
    PromptLookup,
    RecordedDrafter,
    ReplayDrafter,
    replay_fused,
)
from cosine_node.engine.curve import CostCurve
from cosine_node.simulation.traces import Trace, TraceSet
from cosine_node.simulation.workload import LOOKUP

NODES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
SAMPLED_PROMPTS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The best composition of a pass: `nodes` draft nodes for each of `requests`, which commits `tokens`."""

    requests: int
    nodes: int
    tokens: float
    pass_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.pass_s

    def as_json(self, verifiers: int) -> dict[str, Any]:
        return {
            "requests_per_pass": self.requests,
            "nodes_per_request": self.nodes,
            "tokens_per_pass": self.tokens,
            "pass_ms": 1e3 * self.pass_s,
            "tokens_per_s": verifiers * self.tokens_per_s,
        }


def best_pass(curve: CostCurve, *, requests: int, gains: Mapping[int, float], budget_tokens: int) -> Bound:
    """The composition with the most tokens a second; `gains[k]` are accepted tokens of k nodes of a request."""
    possible = [k for k in gains if k == 0 or requests * (1 + k) <= budget_tokens]
    bounds = [
        Bound(
            requests=requests,
            nodes=nodes,
            tokens=requests * (1.0 + gains[nodes]),
            pass_s=curve.seconds(requests * (1 + nodes)),
        )
        for nodes in possible
    ]
    return max(bounds, key=lambda bound: bound.tokens_per_s)


def told(nodes: Sequence[int] = NODES) -> dict[int, float]:
    """Gains of drafters that are always right."""
    return {count: float(count) for count in nodes}


@cache
def measured_gains(temperature: float, *, split: str = TEST, prompts: int = SAMPLED_PROMPTS) -> Mapping[int, float]:
    """Accepted tokens per pass by nodes, the most probable first of what a drafter of every kind drafts, fused."""
    traces = TraceSet.load_shipped().select(split=split, temperature=temperature)[:prompts]
    gains = {0: 0.0}
    for nodes in NODES[1:]:
        drafters = {author: ReplayDrafter(_voice(name, traces)) for author, name in enumerate(sorted(DOMAINS), 1)}
        tallies = [replay_fused(drafters, trace, budget=nodes) for trace in traces]
        gains[nodes] = sum(tally.accepted for tally in tallies) / sum(tally.rounds for tally in tallies)
    return gains


def _voice(name: str, traces: Sequence[Trace]) -> CandidateSource:
    return PromptLookup() if name == LOOKUP else RecordedDrafter(TraceSet(traces), f"draft-{name}")
