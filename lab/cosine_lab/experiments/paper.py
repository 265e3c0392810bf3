"""The CoSine paper's own setting (arXiv 2503.10325): a server of four cards, sixteen drafters, and a local network.

The paper reports 23.2 % less latency and 32.5 % more throughput than the strongest baseline at equal cost, greedy,
for batches of 1 to 16. Its strategy, `cosine-paper`, and its baselines run here on the same emulated machines, and
so do `cosine` as it ships and a verifier that drafts itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cosine_lab.experiments.crowd import RIVALS, figures_of
from cosine_lab.experiments.entrants import OURS, PLAIN, SHIPPED, SHIPS, OptionValues
from cosine_lab.experiments.experiment import (
    EXPERTS,
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
from cosine_lab.report.intervals import ratio_and_interval
from cosine_lab.report.rtt_findings import ALONE
from cosine_lab.simulation.devices import deploy

PUBLISHED_STRATEGY: Final = "cosine-paper"
NO_COOPERATION: Final = "cosine-paper, one drafter"
"""Without cooperation, which the paper says costs 29 to 33 % of its throughput."""
NO_NETWORK: Final = "cosine-paper, no network"
"""A bound: what its barrier at every token costs beside the drafters' own time is left out."""
BASELINES: Final = (PLAIN.name, "speculative", "specinfer", "pipeinfer")
"""The paper's, its vLLM being plain decoding here."""
OBJECTION: Final = ALONE
"""What needs none of the drafters: our own verifier with one drafter of its own."""
FASTER_CARD: Final = "rtx-3090"
SLOWER_CARD: Final = "rtx-2080ti"
DRAFTER_MODEL_SIZE: Final = "0.5B"
"""That of the paper's second pair. The first pair's, of 68M, is worse than any drafter recorded here."""
DRAFTERS: Final = 16
"""Eight of each card, as in the paper; each is an expert in one of the domains, in turn."""
CHOICES: Final[Mapping[str, tuple[OptionValues, ...]]] = {
    **{name: RIVALS[name] for name in ("speculative", "specinfer", "pipeinfer")},
    PUBLISHED_STRATEGY: tuple(
        {"draft_tokens": length, "drafters": drafters, "width_nodes": 1, "has_prior": True, "shares": shares}
        for length in (2, 4, 6, 8)
        for drafters in (2, 3)
        for shares in (True, False)
    ),
}
"""Option values that each is tuned over; drafts are longer than in `crowd`, for they cost little here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperOptions(ExperimentOptions):
    """The setting. In each of `batches` so many clients ask at once, for `requests` in all and at least two each.

    `rtt_ms` and `rate_bytes_per_s` are those of the network between drafters, 100 Mbit/s in the paper. Rivals are
    tuned on the split "tune" with `tuning_requests` in all, of `tuning_tokens` tokens, over the first
    `tuning_choices` choices.
    """

    batches: tuple[int, ...] = (1, 4, 16)
    requests: int = 16
    profile: str = f"4xa100-80gb:70B/{FASTER_CARD}:{DRAFTER_MODEL_SIZE}"
    rtt_ms: float = 0.5
    rate_bytes_per_s: float = 12.5e6
    max_new_tokens: int = RECORDED_TOKENS
    budget_tokens: int = 128
    tuning_requests: int = 4
    tuning_tokens: int = 32
    tuning_choices: int = 16

    @classmethod
    def quick(cls) -> "PaperOptions":
        return cls(batches=(2,), requests=2, max_new_tokens=8, tuning_requests=1, tuning_tokens=4, tuning_choices=1)


def run(options: PaperOptions, *, say: Say) -> JsonRow:
    """Tune the published strategies for each batch, measure everybody; the result (docs/benchmarks.md)."""
    tuned = _tuned(options, say)
    planned = [
        (batch, label, cell) for batch in options.batches for label, cell in _measured(options, batch, tuned)
    ]
    say(f"{len(planned)} cells to measure")
    results = in_processes(run_cell, [cell for *_, cell in planned], processes=options.processes, say=say)
    rows = [
        row_of(batch, label, cell, result) for (batch, label, cell), result in zip(planned, results, strict=True)
    ]
    return {
        "what": "The strategy of the CoSine paper, its baselines, and cosine on the machines of the paper, "
        "emulated, for greedy requests of which so many run at once.",
        "setup": {
            **setup_of(options),
            **emulated([options.profile], options.rtt_ms),
            "drafters": f"{DRAFTERS}, each an expert in one of five domains, every other on {SLOWER_CARD}",
            "baselines": f"{PLAIN.name} stands for the paper's vLLM",
            "intervals": "95 %, by bootstrap over the requests",
            "tuned_over": CHOICES,
        },
        "rows": rows,
        "findings": findings_of(rows, seed=options.seed),
    }


def cell_of(
    options: PaperOptions, batch: int, strategy: str, choice: OptionValues, *, requests: int, **more: Any
) -> Cell:
    """The cell of a strategy at a batch, `requests` in all; `more` are fields of its scenario."""
    speeds = [1.0 / deploy(card, DRAFTER_MODEL_SIZE).seconds(1) for card in (FASTER_CARD, SLOWER_CARD)]
    return Cell(
        strategy=strategy,
        choice=choice,
        scenario={
            "seed": options.seed,
            "profile": options.profile,
            "drafters": DRAFTERS,
            "domains": EXPERTS,
            "drafter_speeds": tuple(speed / speeds[0] for speed in speeds),
            "rtt_ms": options.rtt_ms,
            "rate_bytes_per_s": options.rate_bytes_per_s,
            "clients": batch,
            "requests": requests,
            "max_requests": batch,
            "max_new_tokens": options.max_new_tokens,
            **more,
        },
        budget_tokens=options.budget_tokens,
    )


def _tuned(options: PaperOptions, say: Say) -> dict[tuple[int, str], OptionValues]:
    """The option values with the least time for every strategy that has any, by batch and name."""
    tried = [
        (batch, name, choice)
        for batch in options.batches
        for name, choices in CHOICES.items()
        for choice in choices[: options.tuning_choices]
    ]
    cells = []
    for batch, name, choice in tried:
        requests = max(1, options.tuning_requests // batch)
        cell = cell_of(options, batch, name, choice, requests=requests, max_new_tokens=options.tuning_tokens)
        cells.append(replace(cell, prompts=Prompts(split=TUNE_SPLIT)))
    say(f"{len(cells)} cells to tune on")
    results = in_processes(run_cell, cells, processes=options.processes, say=say)
    best: dict[tuple[int, str], tuple[float, OptionValues]] = {}
    for (batch, name, choice), result in zip(tried, results, strict=True):
        if (batch, name) not in best or result.total_s < best[batch, name][0]:
            best[batch, name] = result.total_s, choice
    return {key: choice for key, (_, choice) in best.items()}


def _measured(
    options: PaperOptions, batch: int, tuned: Mapping[tuple[int, str], OptionValues]
) -> Iterator[tuple[str, Cell]]:
    """Everybody at a batch, ours first."""
    requests = max(2, options.requests // batch)
    ships = {"policy": SHIPS}
    yield OURS.name, cell_of(options, batch, OURS.name, ships, requests=requests, **SHIPPED)
    published = tuned[batch, PUBLISHED_STRATEGY]
    yield PUBLISHED_STRATEGY, cell_of(options, batch, PUBLISHED_STRATEGY, published, requests=requests)
    lone = {**published, "drafters": 1}
    yield NO_COOPERATION, cell_of(options, batch, PUBLISHED_STRATEGY, lone, requests=requests)
    near = {"rtt_ms": 0.0, "rate_bytes_per_s": 0.0, "decision_s": 0.0}
    yield NO_NETWORK, cell_of(options, batch, PUBLISHED_STRATEGY, published, requests=requests, **near)
    yield OBJECTION, cell_of(options, batch, OURS.name, ships, requests=requests, **SHIPPED, max_drafters=0)
    for name in BASELINES:
        yield name, cell_of(options, batch, name, tuned.get((batch, name), {}), requests=requests)


def row_of(batch: int, label: str, cell: Cell, result: CellResult) -> JsonRow:
    """The figures of a strategy at a batch; `request_s` are the seconds of its requests, the same for everybody."""
    requests = result.report.results
    figures = figures_of(result, seed=cell.scenario["seed"])
    del figures["request_ms"]
    return {
        "batch": batch,
        "strategy": label,
        "options": {name: value for name, value in cell.choice.items() if name != "policy"},
        "ms_per_token": 1e3 * result.total_s / sum(request.tokens for request in requests),
        **figures,
        "request_s": [request.seconds for request in requests],
    }


def findings_of(rows: Sequence[JsonRow], *, seed: int) -> JsonRow:
    """The published strategy and ours against the strongest baseline and each, and the worth of cooperation."""
    known = {(row["batch"], row["strategy"]): row for row in rows}
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    against = [
        {
            "batch": batch,
            "strategy": name,
            "baseline": other,
            **compared(known[batch, name], known[batch, other], seed),
        }
        for batch in batches
        for name in (OURS.name, PUBLISHED_STRATEGY)
        for other in (*BASELINES, OBJECTION)
    ]
    strongest = {
        key: min(entries, key=lambda entry: float(entry["latency_saved_percent"]))
        for key, entries in grouped(
            (entry for entry in against if entry["baseline"] != OBJECTION), "batch", "strategy"
        ).items()
    }
    return {
        "against": against,
        "strongest": list(strongest.values()),
        "objection": [
            entry for entry in against if entry["baseline"] == OBJECTION and entry["strategy"] == OURS.name
        ],
        "cooperation": [
            {"batch": batch, **compared(known[batch, PUBLISHED_STRATEGY], known[batch, NO_COOPERATION], seed)}
            for batch in batches
        ],
        **sum_of_checks(rows),
    }


def compared(own: JsonRow, other: JsonRow, seed: int) -> JsonRow:
    """How much less time a token takes, with the interval of the ratio of times, and the ratio of throughputs."""
    found = ratio_and_interval(other["request_s"], own["request_s"], seed=seed)
    return {
        "latency_saved_percent": 100.0 * (1.0 - 1.0 / found["ratio"]),
        "times_as_fast": found["ratio"],
        "interval": found["interval"],
        "throughput_ratio": own["tokens_per_s"] / other["tokens_per_s"],
    }
