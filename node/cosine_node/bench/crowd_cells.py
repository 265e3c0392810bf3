"""One cell of the crowd: many clients at once on few machines, every strategy with the same machines and links."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.bench.cells import DOMAINS, RECORDED_TOKENS, TEST, best_drafters
from cosine_node.bench.entrants import COUPLED, NOT_OF_STRATEGIES, POLICIES, Case, Choice, entrant
from cosine_node.simulation.participants import identity_of
from cosine_node.simulation.report import NodeUse, SimulationReport
from cosine_node.simulation.running import run_scenario
from cosine_node.simulation.scenario import EngineSource, Scenario
from cosine_node.simulation.swarm import DIGEST, numbered_nonces
from cosine_node.simulation.traces import TraceSet
from cosine_node.simulation.workload import TraceWorkload
from cosine_p2p.strategies.base import Strategy, StrategyKind
from cosine_p2p.strategies.published.batch_objective import BatchDirector
from cosine_p2p.strategies.published.cosine_paper import CosinePaper, CosinePaperOptions
from cosine_p2p.strategies.published.spin import Spin, SpinDirector, SpinOptions
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_protocol.request import Request

EXPERTS: Final = (*DOMAINS, "code")
"""What the drafters of the crowd are experts in: one of every kind, and a second copy of one, which is faster."""
SPEEDS: Final = (0.5, 1.0, 1.4, 0.7, 0.5, 2.0, 1.4, 1.0)
"""How many times as fast as the profile says each of them is."""
VERIFIERS: Final = 2
NOT_OF_OPTIONS: Final = NOT_OF_STRATEGIES | {"shares"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdCell:
    """What to run, in words that travel between processes.

    `clients` ask for `requests` prompts each, one after the other. `choice` holds options of the entrant
    `strategy`, and for strategies with a director `shares`: whether all requests share one. `budget_tokens` bounds
    a pass of every verifier, `is_told` lets the drafters know the stream.
    """

    strategy: str
    choice: Choice = field(default_factory=dict)
    profile: str = "60/6"
    rtt_ms: float = 20.0
    temperature: float = 0.0
    clients: int = 16
    requests: int = 5
    tokens: int = RECORDED_TOKENS
    budget_tokens: int = 64
    split: str = TEST
    is_told: bool = False
    seed: int = 0

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.choice.items())
        return f"{self.strategy}, {self.clients} clients, {self.profile} ({options})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdResult:
    """What a cell measured, in virtual time; a token's latency is that of its request by the request's tokens.

    `full_s` is how long all clients were asking, before the first had nothing left to ask, and `full_tokens` what
    was served meanwhile, a request's tokens spread evenly over its time.
    """

    request_s: tuple[float, ...]
    token_s: tuple[float, ...]
    tokens: int
    busy_s: float
    seconds: float
    full_s: float
    full_tokens: float
    verifiers: tuple[NodeUse, ...]
    rounds: int
    accepted: int
    mismatches: int
    violations: tuple[str, ...]
    digest: str

    @property
    def tokens_per_s(self) -> float:
        return self.full_tokens / self.full_s

    @property
    def rows_per_pass(self) -> float:
        return sum(node.rows for node in self.verifiers) / self._passes

    @property
    def fed_per_pass(self) -> float:
        return sum(node.tokens_fed for node in self.verifiers) / self._passes

    @property
    def verifier_shares(self) -> tuple[float, ...]:
        """What part of all rows each verifier had in its passes."""
        total = max(1, sum(node.rows for node in self.verifiers))
        return tuple(node.rows / total for node in self.verifiers)

    @property
    def verifier_busy_share(self) -> float:
        """What part of the time the verifiers were in a pass."""
        return sum(node.busy_s for node in self.verifiers) / (self.seconds * len(self.verifiers))

    @property
    def _passes(self) -> int:
        return max(1, sum(node.passes for node in self.verifiers))


def share_of(values: tuple[float, ...], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def run_crowd(cell: CrowdCell) -> CrowdResult:
    """Run a cell. Raises `UsageError` for what cannot be run, and if a request did not finish."""
    plays = entrant(cell.strategy)
    scenario, workload, traces = staged_crowd(cell)
    cases = _cases(scenario, workload, traces)
    kind = StrategyKind(
        name=plays.name,
        make=_Maker(cell, scenario, cases),
        is_stepped=plays.is_stepped,
        wants_drafters=plays.wants_drafters,
        verifiers=plays.verifiers,
    )
    policy = POLICIES[cell.choice.get("policy", "ours")]
    options = {"policy": policy, "budget_tokens": cell.budget_tokens}
    report = run_scenario(scenario, strategies={kind.name: kind}, workload=workload, verifier_options=options)
    if len(report.finished) < scenario.total_requests:
        raise UsageError(f"{cell}: {scenario.total_requests - len(report.finished)} requests did not finish.")
    return _measured(report)


def staged_crowd(cell: CrowdCell) -> tuple[Scenario, TraceWorkload, TraceSet]:
    """The scenario, the prompts and the traces of a cell. Raises `UsageError`."""
    scenario = Scenario(
        name="crowd",
        seed=cell.seed,
        source=EngineSource.TRACES,
        strategy=cell.strategy,
        verifiers=VERIFIERS,
        drafters=len(EXPERTS),
        domains=EXPERTS,
        drafter_speeds=SPEEDS,
        profile=cell.profile,
        rtt_ms=cell.rtt_ms,
        clients=cell.clients,
        requests=cell.requests,
        max_requests=cell.clients,
        temperature=cell.temperature,
        max_new_tokens=cell.tokens,
        law=cell.choice.get("law", COUPLED),
        is_oracle=cell.is_told,
    )
    chosen = TraceSet.load_shipped().select(split=cell.split, temperature=cell.temperature)
    if not chosen:
        raise UsageError(f"There is no trace at temperature {cell.temperature:g} in the split {cell.split!r}.")
    traces = TraceSet(chosen)
    return scenario, TraceWorkload(scenario, traces), traces


class _Maker:
    """Makes the strategy of each request, all with one director where they share one."""

    def __init__(self, cell: CrowdCell, scenario: Scenario, cases: Mapping[bytes, Case]) -> None:
        self._cell = cell
        self._cases = cases
        self._spin = SpinDirector(places=max(1, math.ceil(cell.clients / len(EXPERTS))))
        self._batch = _batch_director(cell, scenario)

    def __call__(self, root: bytes) -> Strategy:
        choice = self._cell.choice
        own = {name: value for name, value in choice.items() if name not in NOT_OF_OPTIONS}
        if choice.get("shares") and self._cell.strategy == "spin":
            return Spin(root, options=SpinOptions(**own), director=self._spin)
        if choice.get("shares") and self._cell.strategy == "cosine-paper":
            return CosinePaper(root, options=CosinePaperOptions(**own), director=self._batch)
        rest = {name: value for name, value in choice.items() if name != "shares"}
        return entrant(self._cell.strategy).build(root, rest, self._cases[root])


def _batch_director(cell: CrowdCell, scenario: Scenario) -> BatchDirector:
    """Plans over both verifiers and all drafters together, with the slowest drafter's time (papers 1.4)."""
    drafting = [scenario.curve(Role.DRAFTER, index=index) for index in range(len(EXPERTS))]
    verifying = scenario.curve(Role.VERIFIER)
    rtt_s = cell.rtt_ms / 1e3

    def draft_s(requests: int, tokens: int) -> float:
        each = math.ceil(requests / len(EXPERTS))
        return tokens * (rtt_s + max(curve.seconds(each) for curve in drafting))

    def verify_s(requests: int, tokens: int) -> float:
        return rtt_s + verifying.seconds(math.ceil((requests + tokens) / VERIFIERS))

    return BatchDirector(draft_s=draft_s, verify_s=verify_s, most=VERIFIERS * cell.budget_tokens)


def _cases(scenario: Scenario, workload: TraceWorkload, traces: TraceSet) -> dict[bytes, Case]:
    """The trace and the drafters of each request, by the digest that its strategy is made with."""
    cases = {}
    for client in range(scenario.clients):
        peer_id = identity_of("client", client).peer_id
        nonces = numbered_nonces(peer_id)
        for number in range(client, scenario.total_requests, scenario.clients):
            task = workload.task(number)
            request = Request(
                target_digest=DIGEST,
                tokenizer_digest=DIGEST,
                numerics=workload.target(0).numerics,
                prompt=task.prompt,
                sampling=task.sampling,
                eos=workload.eos,
                client=peer_id,
                nonce=nonces(),
                max_new_tokens=task.max_new_tokens,
            )
            trace = traces.find(task.prompt)
            cases[request_digest(request)] = Case(trace, _authors(trace.domain, trace.temperature))
    return cases


def _authors(domain: str, temperature: float) -> tuple[int, ...]:
    """The authors of the faster drafter of each kind, the best for a domain first.

    A client lists one drafter of each expertise, in the order of their names, before a second of any, and within
    one the fastest first (`cosine_p2p.selection`).
    """
    numbers = {f"draft-{name}": author for author, name in enumerate(sorted(set(EXPERTS)), 1)}
    return tuple(numbers[model] for model in best_drafters(domain, temperature) if model in numbers)


def _measured(report: SimulationReport) -> CrowdResult:
    began_s = min(result.began_s for result in report.results)
    last_s: dict[int, float] = {}
    for result in report.results:
        last_s[result.client] = max(last_s.get(result.client, 0.0), result.began_s + result.seconds)
    until_s = min(last_s.values())
    return CrowdResult(
        request_s=tuple(result.seconds for result in report.results),
        token_s=tuple(result.seconds / result.tokens for result in report.results),
        tokens=report.tokens,
        busy_s=sum(node.busy_s for node in report.nodes),
        seconds=report.virtual_seconds - began_s,
        full_s=until_s - began_s,
        full_tokens=sum(
            result.tokens * min(1.0, max(0.0, until_s - result.began_s) / result.seconds)
            for result in report.results
        ),
        verifiers=tuple(node for node in report.nodes if node.role is Role.VERIFIER),
        rounds=sum(result.rounds for result in report.results),
        accepted=sum(result.accepted for result in report.results),
        mismatches=report.mismatches,
        violations=tuple(report.violations()),
        digest=report.digest,
    )


def as_figures(result: CrowdResult) -> dict[str, Any]:
    """The figures of a row."""
    return {
        "request_ms": [round(1e3 * seconds) for seconds in sorted(result.request_s)],
        "request_p50_ms": 1e3 * share_of(result.request_s, 0.5),
        "request_p95_ms": 1e3 * share_of(result.request_s, 0.95),
        "token_p50_ms": 1e3 * share_of(result.token_s, 0.5),
        "token_p95_ms": 1e3 * share_of(result.token_s, 0.95),
        "tokens_per_s": result.tokens_per_s,
        "gpu_seconds_per_token": result.busy_s / result.tokens,
        "accepted_tokens_per_round": result.accepted / max(1, result.rounds),
        "rows_per_pass": result.rows_per_pass,
        "tokens_fed_per_pass": result.fed_per_pass,
        "verifier_busy_share": result.verifier_busy_share,
        "verifier_shares": list(result.verifier_shares),
        "requests": len(result.request_s),
        "tokens": result.tokens,
        "mismatches": result.mismatches,
        "violations": len(result.violations),
    }
