"""The soak: thousands of small random swarms, none of which may violate an invariant."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_lab.emulation.links import seeded
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.simulation.faults import RANDOM
from cosine_lab.simulation.report import RequestEnding
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario, curves
from cosine_p2p.strategy.base import StrategyKind

LOG = logging.getLogger(__name__)
SOAK: Final = "soak"
"""The scenario's name on the command line."""
# Small swarms, so that a seed takes a fraction of a second and thousands are tried: five nodes can be two of each
# role, one of which fails while the other continues.
MAX_NODES: Final = 5
PROFILES: Final = ("60/6", "25/8", "40/3", "60/6")
"""Speed factors of drafters, three to thirteen times their verifier's; the usual ones twice as often."""
VOCAB_TOKENS: Final = (6, 8, 12)
"""Small, so that scripted engines meet the same tokens repeatedly and reuse their logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakFailure:
    """A seed whose run violated an invariant."""

    seed: int
    strategy: str
    violations: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"cosine-node simulate --scenario {SOAK} --seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """The totals of many seeds: requests by ending, runs by strategy, faults by kind."""

    runs: int
    endings: Mapping[str, int]
    strategies: Mapping[str, int]
    faults: Mapping[str, int]
    tokens: int
    wall_seconds: float
    failures: tuple[SoakFailure, ...]
    is_interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        """The JSON object of `cosine-node simulate --seeds`."""
        return {
            "scenario": SOAK,
            "runs": self.runs,
            "requests": dict(self.endings),
            "strategies": dict(self.strategies),
            "faults": dict(self.faults),
            "tokens": self.tokens,
            "wall_seconds": round(self.wall_seconds, 3),
            "interrupted": self.is_interrupted,
            "failures": [
                {"seed": f.seed, "strategy": f.strategy, "violations": list(f.violations), "command": f.command}
                for f in self.failures
            ],
        }


def soak_scenario(seed: int, strategies: Sequence[str] = tuple(ALL_STRATEGIES)) -> Scenario:
    """Return a small random swarm: up to five nodes on links of any kind, a few short requests, any strategy."""
    rng = seeded(seed, SOAK)
    verifiers = rng.choice((1, 1, 2, 2, 3))
    nodes: dict[str, Any] = {
        "drafters": rng.randint(max(0, 2 - verifiers), MAX_NODES - verifiers),
        "profile": rng.choice(PROFILES),
        "drafter_speeds": tuple(rng.choice((0.5, 1.0, 2.0)) for _ in range(3)),
        "max_requests": rng.choice((2, 16, 16, 16)),
    }
    requests: dict[str, Any] = {
        "clients": rng.randint(1, 4),
        "requests": rng.choice((1, 1, 2)),
        "arrivals_per_s": rng.choice((0.0, 0.0, 2.0, 10.0)),
        "strategy": rng.choice(sorted(strategies)),
        "fidelities": tuple(rng.choice((0.0, 0.3, 0.6, 0.8, 0.9, 1.0)) for _ in range(4)),
        "timeout_s": rng.choice((120.0, 120.0, 120.0, 3.0)),
    }
    links: dict[str, Any] = {
        "rtt_ms": rng.choice((0.0, 1.0, 10.0, 20.0, 60.0, 150.0, 300.0)),
        "jitter_ms": rng.choice((0.0, 0.0, 1.0, 10.0)),
        "loss": rng.choice((0.0, 0.0, 0.001, 0.02)),
        "rate_bytes_per_s": rng.choice((0.0, 0.0, 1e6, 2e5)),
    }
    vocab_tokens = rng.choice(VOCAB_TOKENS)
    texts: dict[str, Any] = {
        "vocab_tokens": vocab_tokens,
        "prompt_tokens": rng.randint(1, 12),
        "max_new_tokens": rng.randint(8, 40),
        "temperature": rng.choice((0.0, 0.0, 0.0, 0.8)),
        "eos": rng.choice(((), (), (rng.randrange(vocab_tokens),))),
    }
    stages = rng.choice((0, 0, 0, 2, 3))
    ways_ms = rng.choice((10.0, 100.0, 300.0))
    parts: dict[str, Any] = {}
    if stages:
        pass_ms = 1e3 * curves(nodes["profile"])[0].seconds(1)
        parts = {"stages": stages, "stage_copies": 2, "traversal_ms": stages * pass_ms + ways_ms}
    texts |= parts
    return Scenario(name=SOAK, seed=seed, verifiers=verifiers, faults=RANDOM, **nodes, **requests, **links, **texts)


def run_soak(
    seeds: Iterable[int],
    *,
    strategies: Mapping[str, StrategyKind] | None = None,
    on_run: Callable[[int], None] | None = None,
) -> SoakReport:
    """Run one scenario for each seed and check everything; `on_run` is called with each finished seed.

    An interrupt ends it with the seeds so far, and `is_interrupted`.
    """
    known = ALL_STRATEGIES if strategies is None else strategies
    endings: Counter[str] = Counter()
    names: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failures, runs, tokens, began_s = list[SoakFailure](), 0, 0, time.perf_counter()
    is_interrupted = False
    try:
        for seed in seeds:
            scenario = soak_scenario(seed, tuple(known))
            try:
                report = run_scenario(scenario, strategies=known)
            except Exception as error:
                LOG.exception("seed %d broke off", scenario.seed)
                violations = [f"the run broke off: {error!r}"]
            else:
                violations = report.violations()
                endings.update(result.ending.value for result in report.results)
                faults.update(report.fault_counts)
                tokens += report.tokens
            runs += 1
            names[scenario.strategy] += 1
            if violations:
                failures.append(SoakFailure(seed=seed, strategy=scenario.strategy, violations=tuple(violations)))
            if on_run is not None:
                on_run(seed)
    except KeyboardInterrupt:
        is_interrupted = True
    return SoakReport(
        runs=runs,
        endings={ending.value: endings[ending.value] for ending in RequestEnding},
        strategies=dict(sorted(names.items())),
        faults=dict(sorted(faults.items())),
        tokens=tokens,
        wall_seconds=time.perf_counter() - began_s,
        failures=tuple(failures),
        is_interrupted=is_interrupted,
    )
