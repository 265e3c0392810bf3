"""Equal resources: many clients at once on the same verifiers, drafters and links, whatever the strategy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.bench.cells import TEST, TUNE, Say, all_processors, in_processes
from cosine_node.bench.crowd_bounds import best_pass, measured_gains, told
from cosine_node.bench.crowd_cells import EXPERTS, SPEEDS, VERIFIERS, CrowdCell, as_figures, run_crowd
from cosine_node.bench.entrants import BY_LABEL, COUPLED, OWN, PUBLISHED, Choice
from cosine_node.simulation.scenario import DECISION_S, Scenario, curves
from cosine_protocol.records import Role

NAME: Final = "crowd"
COMMAND: Final = f"cosine-node bench {NAME}"
OURS: Final = "cosine"
PLAIN: Final = "plain"
ORACLE: Final = "oracle"
LATENCY: Final = "latency"
SATURATED: Final = "saturated"
_CHAIN: Final = ({"draft_tokens": 1}, {"draft_tokens": 2}, {"draft_tokens": 4}, {"draft_tokens": None})
RIVALS: Final[Mapping[str, tuple[Choice, ...]]] = {
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
    "dsi": tuple({"lookahead_tokens": ahead, "is_eager": True, "drafter": BY_LABEL} for ahead in (None, 2, 4, 8)),
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
        for policy in ("published", "ours")
    ),
}
"""Rivals with the choices they are tuned over; at T > 0 those that draft chains also try the published law."""
CHAINS: Final = frozenset({"speculative", "spin", "cosine-paper", "dsi", "dsi-2"})
DEVICES: Final = "a100-80gb:70B/rtx-3090:1B"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdOptions:
    """What to measure, at each of `places`, a profile and a temperature: latency with `clients` that ask for
    `requests` prompts each, throughput with `many_clients`.

    Rivals are tuned on the split "tune" with one request a client of `tuning_tokens` tokens.
    """

    seed: int = 0
    processes: int = field(default_factory=all_processors)
    places: tuple[tuple[str, float], ...] = (("60/6", 0.0), (DEVICES, 0.0), (DEVICES, 0.8))
    rtt_ms: float = 20.0
    clients: int = 16
    requests: int = 4
    many_clients: int = 48
    many_requests: int = 2
    tokens: int = 128
    budget_tokens: int = 64
    rivals: tuple[str, ...] = tuple(RIVALS)
    tuning_tokens: int = 32
    tuning_choices: int = 16

    @classmethod
    def quick(cls) -> "CrowdOptions":
        """The smallest form, for tests and a look."""
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of machines and load."""

    load: str
    profile: str
    temperature: float


def run(options: CrowdOptions, *, say: Say) -> dict[str, object]:
    """Tune every rival for each setting, then measure everybody; one JSON object (docs/benchmarks.md)."""
    settings = [
        Setting(load=load, profile=profile, temperature=temperature)
        for profile, temperature in options.places
        for load in (LATENCY, SATURATED)
    ]
    tuned = _tuned(options, settings, say)
    planned = [(setting, label, cell) for setting in settings for label, cell in _measured(options, setting, tuned)]
    say(f"{len(planned)} cells to measure")
    results = in_processes(run_crowd, [cell for *_, cell in planned], processes=options.processes, say=say)
    rows = [
        {
            "load": setting.load,
            "profile": setting.profile,
            "temperature": setting.temperature,
            "strategy": label,
            "clients": cell.clients,
            "options": {name: value for name, value in cell.choice.items() if name != "policy"},
            "policy": cell.choice.get("policy", "ours"),
            **as_figures(result),
        }
        for (setting, label, cell), result in zip(planned, results, strict=True)
    ]
    return {
        "name": NAME,
        "what": "Latency and throughput of many clients at once, every strategy with the same verifiers, drafters, "
        "links and token budget of a pass.",
        "command": COMMAND,
        "setup": _setup(options),
        "rows": rows,
        "findings": _findings(options, settings, rows),
    }


def choices_of(name: str, temperature: float) -> list[Choice]:
    """What a rival is tuned over."""
    found = list(RIVALS[name])
    if temperature and name in CHAINS:
        found += [{**choice, "law": PUBLISHED} for choice in RIVALS[name]]
    return found


def _cell(options: CrowdOptions, setting: Setting, strategy: str, choice: Choice, **more: Any) -> CrowdCell:
    is_many = setting.load == SATURATED
    fields = {
        "strategy": strategy,
        "choice": choice,
        "profile": setting.profile,
        "rtt_ms": options.rtt_ms,
        "temperature": setting.temperature,
        "clients": options.many_clients if is_many else options.clients,
        "requests": options.many_requests if is_many else options.requests,
        "tokens": options.tokens,
        "budget_tokens": options.budget_tokens,
        "split": TEST,
        "seed": options.seed,
    }
    return CrowdCell(**{**fields, **more})


def _tuned(options: CrowdOptions, settings: Sequence[Setting], say: Say) -> dict[tuple[Setting, str], Choice]:
    """The choice with the most tokens a second, of every rival at every setting."""
    tried = [
        (setting, name, choice)
        for setting in settings
        for name in options.rivals
        for choice in choices_of(name, setting.temperature)[: options.tuning_choices]
    ]
    cells = [
        _cell(options, setting, name, choice, split=TUNE, requests=1, tokens=options.tuning_tokens)
        for setting, name, choice in tried
    ]
    say(f"{len(cells)} cells to tune on")
    results = in_processes(run_crowd, cells, processes=options.processes, say=say)
    best: dict[tuple[Setting, str], tuple[float, Choice]] = {}
    for (setting, name, choice), result in zip(tried, results, strict=True):
        score = result.tokens_per_s if setting.load == SATURATED else 1.0 / sum(result.request_s)
        if score > best.get((setting, name), (0.0, {}))[0]:
            best[setting, name] = score, choice
    return {key: choice for key, (_, choice) in best.items()}


def _measured(
    options: CrowdOptions, setting: Setting, tuned: Mapping[tuple[Setting, str], Choice]
) -> Iterator[tuple[str, CrowdCell]]:
    """Everybody, and the bounds that know the stream."""
    yield PLAIN, _cell(options, setting, PLAIN, {})
    yield OURS, _cell(options, setting, OURS, {})
    for name in options.rivals:
        yield name, _cell(options, setting, name, tuned[setting, name])
    yield ORACLE, _cell(options, setting, ORACLE, {})
    yield "oracle, drafters told", _cell(options, setting, ORACLE, {}, is_told=True)


def _setup(options: CrowdOptions) -> dict[str, Any]:
    return {
        "verifiers": VERIFIERS,
        "drafters": [
            {"expert_in": name, "times_as_fast": speed} for name, speed in zip(EXPERTS, SPEEDS, strict=True)
        ],
        "emulated_profiles": {profile: _passes(profile) for profile, _ in options.places},
        "emulated_rtt_ms": options.rtt_ms,
        "emulated_client_decision_ms": 1e3 * DECISION_S,
        "budget_tokens_per_pass": options.budget_tokens,
        "traces": "the split test, recorded from the embedded models, all domains taking turns",
        LATENCY: {"clients": options.clients, "requests_each": options.requests},
        SATURATED: {"clients": options.many_clients, "requests_each": options.many_requests},
        "tokens_per_request": options.tokens,
        "tuning": {
            "split": TUNE,
            "requests_each": 1,
            "tokens": options.tuning_tokens,
            "choices": {name: [dict(choice) for choice in RIVALS[name]] for name in options.rivals},
            "at_temperature_above_0": f"chains also under the {PUBLISHED} law instead of the {COUPLED} one",
        },
        "oracle": "our strategy told which drafted nodes will be accepted; told drafters know the stream as well",
    }


def _passes(profile: str) -> dict[str, dict[str, float]]:
    shown = (1, 8, 16, 32, 64)
    verifier, drafter = curves(profile)
    return {
        "verifier_ms": {str(tokens): round(1e3 * verifier.seconds(tokens), 3) for tokens in shown},
        "drafter_ms": {str(tokens): round(1e3 * drafter.seconds(tokens), 3) for tokens in shown},
    }


def _findings(
    options: CrowdOptions, settings: Sequence[Setting], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    found = []
    for setting in settings:
        own = {
            row["strategy"]: row for row in rows if all(row[n] == getattr(setting, n) for n in Setting.__slots__)
        }
        found.append(_compared(options, setting, own))
    return {
        "settings": found,
        "mismatches": sum(row["mismatches"] for row in rows),
        "violations": sum(row["violations"] for row in rows),
        "least_verifier_share": min(min(row["verifier_shares"]) for row in rows),
    }


def _compared(options: CrowdOptions, setting: Setting, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Ours against the best other, plain decoding included, for each figure apart; and against the bounds."""
    ours = own[OURS]
    others = [PLAIN, *options.rivals]
    quickest = min(others, key=lambda name: own[name]["token_p50_ms"])
    most = max(others, key=lambda name: own[name]["tokens_per_s"])
    bounds = _bounds(options, setting)
    return {
        "load": setting.load,
        "profile": setting.profile,
        "temperature": setting.temperature,
        "best_latency_of_others": quickest,
        "latency_reduction_percent": 100.0 * (1.0 - ours["token_p50_ms"] / own[quickest]["token_p50_ms"]),
        "request_p50_reduction_percent": 100.0
        * (1.0 - ours["request_p50_ms"] / min(own[name]["request_p50_ms"] for name in others)),
        "request_p95_reduction_percent": 100.0
        * (1.0 - ours["request_p95_ms"] / min(own[name]["request_p95_ms"] for name in others)),
        "best_throughput_of_others": most,
        "throughput_ratio": ours["tokens_per_s"] / own[most]["tokens_per_s"],
        "throughput_of_oracle": ours["tokens_per_s"] / own[ORACLE]["tokens_per_s"],
        "throughput_of_told_oracle": ours["tokens_per_s"] / own["oracle, drafters told"]["tokens_per_s"],
        "bounds": bounds,
        "throughput_of_bound": ours["tokens_per_s"] / bounds["measured_acceptance"]["tokens_per_s"],
    }


def _bounds(options: CrowdOptions, setting: Setting) -> dict[str, Any]:
    """The verifiers without a pause at the best composition of a pass: without drafts, with the best of what
    all drafters say, and with drafts that are always right. Prefill is not counted.
    """
    curve = Scenario(profile=setting.profile).curve(Role.VERIFIER)
    clients = options.clients if setting.load == LATENCY else options.many_clients
    requests = max(1, clients // VERIFIERS)
    gains = {
        "no_drafts": {0: 0.0},
        "measured_acceptance": measured_gains(setting.temperature),
        "always_right": told(),
    }
    return {
        label: best_pass(curve, requests=requests, gains=gain, budget_tokens=options.budget_tokens).as_json(
            VERIFIERS
        )
        for label, gain in gains.items()
    }
