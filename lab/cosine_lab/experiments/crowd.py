"""Equal resources: many clients at once on the same verifiers, drafters and links, whatever the strategy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np

from cosine_lab.experiments.crowd_bounds import ALWAYS_RIGHT, best_pass, measured_gains
from cosine_lab.experiments.entrants import BY_LABEL, COUPLED, ORACLE, OURS, OWN, PLAIN, PUBLISHED, OptionValues
from cosine_lab.experiments.experiment import (
    DRAFTER_DOMAINS,
    RECORDED_TOKENS,
    TUNE_SPLIT,
    Cell,
    CellResult,
    ExperimentOptions,
    JsonRow,
    Prompts,
    Say,
    emulated,
    grouped,
    in_processes,
    run_cell,
    setup_of,
    sum_of_checks,
)
from cosine_lab.report.intervals import bootstrap_interval, medians
from cosine_lab.simulation.scenario import Scenario
from cosine_protocol.records import Role

# The two loads and the second oracle, as they stand in the JSON file.
LATENCY: Final = "latency"
SATURATED: Final = "saturated"
TOLD_ORACLE: Final = "oracle, drafters told"
# A choice: machines that differ, one drafter of every kind and a second, faster one of the first kind.
CROWD_DRAFTERS: Final = (*DRAFTER_DOMAINS, "code")
SPEEDS: Final = (0.5, 1.0, 1.4, 0.7, 0.5, 2.0, 1.4, 1.0)
VERIFIERS: Final = 2
_CHAIN: Final = ({"draft_tokens": 1}, {"draft_tokens": 2}, {"draft_tokens": 4}, {"draft_tokens": None})
RIVALS: Final[Mapping[str, tuple[OptionValues, ...]]] = {
    "speculative": tuple({**chain, "drafter": drafter} for chain in _CHAIN for drafter in (BY_LABEL, OWN)),
    "specinfer": tuple(
        {"depth_tokens": depth, "max_nodes": nodes, "width_nodes": 2, "drafters": drafters, "drafter": BY_LABEL}
        for depth, nodes in ((1, 2), (2, 4), (3, 6), (5, 12))
        for drafters in (1, 2)
    ),
    "spin": tuple(
        {**chain, "explore_rounds": 2, "exploit_rounds": 16, "prior_rounds": 4.0, "shares": shares}
        for chain in _CHAIN
        for shares in (True, False)
    ),
    "cosine-paper": tuple(
        {"draft_tokens": length, "drafters": drafters, "width_nodes": 1, "has_prior": True, "shares": True}
        for length in (1, 2, 4)
        for drafters in (1, 2)
    ),
    "dsi": tuple(
        {"lookahead_tokens": ahead, "drafter": BY_LABEL, "policy": policy}
        for ahead in (1, 2, 4, 8)
        for policy in (PUBLISHED, "ours")
    ),
    "dsi-2": tuple({"lookahead_tokens": ahead, "is_eager": True, "drafter": BY_LABEL} for ahead in (None, 4, 8)),
    "pipeinfer": tuple(
        {
            "p_accept": accept,
            "draft_tokens": 1,
            "n_parallel": parallel,
            "p_split": 0.3,
            "drafter": BY_LABEL,
            "policy": policy,
        }
        for accept in (0.1, 0.3)
        for parallel in (1, 3)
        for policy in (PUBLISHED, "ours")
    ),
}
"""Rivals with the option values they are tuned over; at T > 0 chains are also tried under the published law."""
CHAINS: Final = frozenset({"speculative", "spin", "cosine-paper", "dsi", "dsi-2"})
"""Rivals that draft chains, for which the published law is scripted."""
DEVICES: Final = "a100-80gb:70B/rtx-3090:1B"
"""A choice: cards that are common, with models of the usual two sizes on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdOptions(ExperimentOptions):
    """The measurements, at each of `places`, a profile and a temperature: latency with `clients` that ask for
    `requests` prompts each, throughput with `many_clients`.

    Rivals are tuned on the split "tune" with one request a client of `tuning_tokens` tokens; the bound that depends
    on the drafters is taken from replaying `bound_prompts` prompts.
    """

    places: tuple[tuple[str, float], ...] = (("60/6", 0.0), (DEVICES, 0.0), (DEVICES, 0.8))
    rtt_ms: float = 20.0
    clients: int = 16
    requests: int = 2
    many_clients: int = 48
    many_requests: int = 2
    tokens: int = RECORDED_TOKENS
    budget_tokens: int = 64
    rivals: tuple[str, ...] = tuple(RIVALS)
    tuning_tokens: int = 32
    tuning_choices: int = 16
    bound_prompts: int = 20

    @classmethod
    def quick(cls) -> "CrowdOptions":
        return cls(
            places=(("60/6", 0.0),),
            clients=2,
            requests=1,
            many_clients=3,
            many_requests=1,
            tokens=8,
            rivals=("spin",),
            tuning_tokens=6,
            tuning_choices=1,
            bound_prompts=1,
        )

    def asked(self, load: str) -> tuple[int, int]:
        """The clients of a load, and the requests of each."""
        return (self.clients, self.requests) if load == LATENCY else (self.many_clients, self.many_requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A load on machines of a profile at a temperature."""

    load: str
    profile: str
    temperature: float


Tuned = Mapping[tuple[Setting, str], OptionValues]


def run(options: CrowdOptions, *, say: Say) -> JsonRow:
    """Tune every rival for each setting, then measure everybody; the result (docs/benchmarks.md)."""
    settings = [
        Setting(load=load, profile=profile, temperature=temperature)
        for profile, temperature in options.places
        for load in (LATENCY, SATURATED)
    ]
    tuned = _tuned(options, settings, say)
    planned = [(setting, label, cell) for setting in settings for label, cell in _measured(options, setting, tuned)]
    say(f"{len(planned)} cells to measure")
    results = in_processes(run_cell, [cell for *_, cell in planned], processes=options.processes, say=say)
    rows = [
        {
            **asdict(setting),
            "strategy": label,
            "clients": cell.scenario["clients"],
            "options": {name: value for name, value in cell.choice.items() if name != "policy"},
            "policy": cell.choice.get("policy", "ours"),
            **figures_of(result, seed=options.seed),
        }
        for (setting, label, cell), result in zip(planned, results, strict=True)
    ]
    return {
        "what": "Latency and throughput of many clients at once, every strategy with the same verifiers, drafters, "
        "links and token budget of a pass.",
        "setup": {
            **setup_of(options),
            **emulated([profile for profile, _ in options.places], options.rtt_ms),
            "verifiers": VERIFIERS,
            "drafters_times_as_fast": list(zip(CROWD_DRAFTERS, SPEEDS, strict=True)),
            "tuned_over": {name: RIVALS[name] for name in options.rivals},
            "at_temperature_above_0": f"chains also under the {PUBLISHED} law instead of the {COUPLED} one",
            "intervals": "95 %, by bootstrap over the requests",
            "oracle": "our strategy told which drafted nodes will be accepted; told drafters know the text as well",
        },
        "rows": rows,
        "findings": findings_of(options, rows),
    }


def choices_of(name: str, temperature: float) -> list[OptionValues]:
    """The option values that a rival is tuned over."""
    found = list(RIVALS[name])
    if temperature and name in CHAINS:
        found += [{**choice, "law": PUBLISHED} for choice in RIVALS[name]]
    return found


def cell_of(options: CrowdOptions, setting: Setting, strategy: str, choice: OptionValues, **more: Any) -> Cell:
    """The cell of a strategy in a setting; `more` are fields of its scenario."""
    clients, requests = options.asked(setting.load)
    return Cell(
        strategy=strategy,
        choice=choice,
        scenario={
            "seed": options.seed,
            "verifiers": VERIFIERS,
            "domains": CROWD_DRAFTERS,
            "drafter_speeds": SPEEDS,
            "profile": setting.profile,
            "rtt_ms": options.rtt_ms,
            "clients": clients,
            "requests": requests,
            "max_requests": clients,
            "temperature": setting.temperature,
            "max_new_tokens": options.tokens,
            **more,
        },
        budget_tokens=options.budget_tokens,
    )


def _tuned(options: CrowdOptions, settings: Sequence[Setting], say: Say) -> Tuned:
    """The option values with the most tokens a second, or the least time, of every rival at every setting."""
    tried = [
        (setting, name, choice)
        for setting in settings
        for name in options.rivals
        for choice in choices_of(name, setting.temperature)[: options.tuning_choices]
    ]
    cells = [
        cell_of(options, setting, name, choice, requests=1, max_new_tokens=options.tuning_tokens)
        for setting, name, choice in tried
    ]
    cells = [replace(cell, prompts=Prompts(split=TUNE_SPLIT)) for cell in cells]
    say(f"{len(cells)} cells to tune on")
    results = in_processes(run_cell, cells, processes=options.processes, say=say)
    best: dict[tuple[Setting, str], tuple[float, OptionValues]] = {}
    for (setting, name, choice), result in zip(tried, results, strict=True):
        score = tokens_per_s(result) if setting.load == SATURATED else 1.0 / result.total_s
        if score > best.get((setting, name), (0.0, {}))[0]:
            best[setting, name] = score, choice
    return {key: choice for key, (_, choice) in best.items()}


def _measured(options: CrowdOptions, setting: Setting, tuned: Tuned) -> Iterator[tuple[str, Cell]]:
    """Everybody, and the bounds that know the stream."""
    for name in (PLAIN.name, OURS.name):
        yield name, cell_of(options, setting, name, {})
    for name in options.rivals:
        yield name, cell_of(options, setting, name, tuned[setting, name])
    yield ORACLE.name, cell_of(options, setting, ORACLE.name, {})
    yield TOLD_ORACLE, cell_of(options, setting, ORACLE.name, {}, is_oracle=True)


def tokens_per_s(result: CellResult) -> float:
    """Tokens a second while all clients were asking, a request's tokens spread evenly over its time.

    All ask until the first of them has nothing left to ask.
    """
    results = result.report.results
    began_s = min(request.began_s for request in results)
    last_s: dict[int, float] = {}
    for request in results:
        last_s[request.client] = max(last_s.get(request.client, 0.0), request.began_s + request.seconds)
    until_s = min(last_s.values())
    tokens = sum(r.tokens * min(1.0, max(0.0, until_s - r.began_s) / r.seconds) for r in results)
    return tokens / (until_s - began_s)


def figures_of(result: CellResult, *, seed: int) -> JsonRow:
    """The figures of a row, in virtual time; a token's latency is that of its request by the request's tokens."""
    report = result.report
    request_ms = [1e3 * request.seconds for request in report.results]
    token_ms = [1e3 * request.seconds / request.tokens for request in report.results]
    verifiers = [node for node in report.nodes if node.role is Role.VERIFIER]
    passes = max(1, sum(node.passes for node in verifiers))
    rows = sum(node.rows for node in verifiers)
    asked_s = report.virtual_seconds - min(request.began_s for request in report.results)
    return {
        "request_ms": [round(ms) for ms in sorted(request_ms)],
        "request_p50_ms": float(np.percentile(request_ms, 50)),
        "request_p95_ms": float(np.percentile(request_ms, 95)),
        "token_p50_ms": float(np.percentile(token_ms, 50)),
        "token_p50_interval_ms": bootstrap_interval(token_ms, medians, seed=seed),
        "token_p95_ms": float(np.percentile(token_ms, 95)),
        "tokens_per_s": tokens_per_s(result),
        "gpu_seconds_per_token": report.seconds_per_token,
        "accepted_tokens_per_round": result.accepted_per_round,
        "rows_per_pass": rows / passes,
        "tokens_fed_per_pass": sum(node.tokens_fed for node in verifiers) / passes,
        "verifier_busy_share": sum(node.busy_s for node in verifiers) / (asked_s * len(verifiers)),
        "verifier_shares": [node.rows / max(1, rows) for node in verifiers],
        "requests": len(report.results),
        **result.checks,
    }


def findings_of(options: CrowdOptions, rows: Sequence[JsonRow]) -> JsonRow:
    """Ours against the best other and against the bounds in every setting; no text may differ anywhere."""
    settings = grouped(rows, *(one.name for one in fields(Setting)))
    return {
        "settings": [
            _compared(options, Setting(load=load, profile=profile, temperature=temperature), own)
            for (load, profile, temperature), own in settings.items()
        ],
        **sum_of_checks(rows),
        "least_verifier_share": min(min(row["verifier_shares"]) for row in rows),
    }


def _compared(options: CrowdOptions, setting: Setting, rows: Sequence[JsonRow]) -> JsonRow:
    """Ours against the best other, plain decoding included, for each figure apart; and against the bounds."""
    own = {row["strategy"]: row for row in rows}
    ours, others = own[OURS.name], [own[name] for name in (PLAIN.name, *options.rivals)]
    quickest = min(others, key=lambda row: float(row["token_p50_ms"]))
    most = max(others, key=lambda row: float(row["tokens_per_s"]))
    bounds = _bounds(options, setting)

    def reduction_percent(name: str) -> float:
        return 100.0 * (1.0 - float(ours[name]) / min(float(row[name]) for row in others))

    return {
        **asdict(setting),
        "best_latency_of_others": quickest["strategy"],
        "latency_reduction_percent": reduction_percent("token_p50_ms"),
        "request_p50_reduction_percent": reduction_percent("request_p50_ms"),
        "request_p95_reduction_percent": reduction_percent("request_p95_ms"),
        "best_throughput_of_others": most["strategy"],
        "throughput_ratio": ours["tokens_per_s"] / most["tokens_per_s"],
        "throughput_of_oracle": ours["tokens_per_s"] / own[ORACLE.name]["tokens_per_s"],
        "throughput_of_told_oracle": ours["tokens_per_s"] / own[TOLD_ORACLE]["tokens_per_s"],
        "bounds": bounds,
        "throughput_of_bound": ours["tokens_per_s"] / bounds["measured_acceptance"]["tokens_per_s"],
    }


def _bounds(options: CrowdOptions, setting: Setting) -> JsonRow:
    """The verifiers without a pause at the best composition of a pass: without drafts, with the best of what
    all drafters draft, and with drafts that are always right. Prefill is not counted.
    """
    curve = Scenario(profile=setting.profile).curve(Role.VERIFIER)
    requests = max(1, options.asked(setting.load)[0] // VERIFIERS)
    gains = {
        "no_drafts": {0: 0.0},
        "measured_acceptance": measured_gains(setting.temperature, prompts=options.bound_prompts),
        "always_right": ALWAYS_RIGHT,
    }
    found = {}
    for label, gain in gains.items():
        bound = best_pass(curve, requests=requests, gains=gain, budget_tokens=options.budget_tokens)
        found[label] = {
            "requests_per_pass": requests,
            "nodes_per_request": bound.nodes,
            "tokens_per_pass": bound.tokens,
            "pass_ms": 1e3 * bound.pass_s,
            "tokens_per_s": VERIFIERS * bound.tokens_per_s,
        }
    return found
