"""The rate at which each drafter gives the target's token, domain by domain: the traces alone, nothing is run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped, setup_of, shipped_traces
from cosine_lab.report.intervals import ratio_and_interval
from cosine_lab.simulation.traces import CANDIDATES, Trace
from cosine_lab.simulation.workload import TEST_SPLIT

GENERALIST: Final = "draft-general"
"""The drafter that is no expert of any domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceOptions(ExperimentOptions):
    """Which traces to count; `prompts` bounds those of each domain, None takes all."""

    split: str = TEST_SPLIT
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompts: int | None = None

    @classmethod
    def quick(cls) -> "AcceptanceOptions":
        return cls(prompts=2)


def run(options: AcceptanceOptions, *, say: Say) -> JsonRow:
    """The matrix of drafters and domains; the result (docs/benchmarks.md)."""
    rows = [row for temperature in options.temperatures for row in _matrix(options, temperature)]
    say(f"{len(rows)} pairs of a drafter and a domain")
    return {
        "what": "How often the target's next token is a drafter's first choice, or among its first four or eight, "
        "given all tokens before it.",
        "setup": setup_of(
            options,
            candidates="by falling score after the same noise as the target's, at the same temperature",
            intervals="95 %, by bootstrap over the prompts",
        ),
        "rows": rows,
        "findings": _findings(rows),
    }


def _matrix(options: AcceptanceOptions, temperature: float) -> Iterator[JsonRow]:
    chosen = shipped_traces().select(split=options.split, temperature=temperature)
    for domain in sorted({trace.domain for trace in chosen}):
        own = [trace for trace in chosen if trace.domain == domain][: options.prompts]
        tokens = sum(len(trace.stream) for trace in own)
        for drafter in sorted(own[0].drafters):
            hits = [_hits(trace, drafter, 1) for trace in own]
            first = ratio_and_interval(hits, [len(trace.stream) for trace in own], seed=options.seed)
            yield {
                "temperature": temperature,
                "domain": domain,
                "drafter": drafter,
                "first_choice": first["ratio"],
                "interval": first["interval"],
                "among_4": sum(_hits(trace, drafter, 4) for trace in own) / tokens,
                "among_8": sum(_hits(trace, drafter, CANDIDATES) for trace in own) / tokens,
                "overlap": sum(float(trace.drafters[drafter].overlap.sum()) for trace in own) / tokens,
                "tokens": tokens,
                "prompts": len(own),
            }


def _hits(trace: Trace, drafter: str, rank: int) -> int:
    """The number of tokens that are among a drafter's first `rank` candidates."""
    first = trace.drafters[drafter].candidate_tokens[:, :rank].tolist()
    return sum(token in candidates for token, candidates in zip(trace.stream, first, strict=True))


def _findings(rows: Sequence[JsonRow]) -> JsonRow:
    """For every domain its best drafter, and how far that is ahead of the generalist and of the worst."""
    best = []
    for (temperature, domain), own in grouped(rows, "temperature", "domain").items():
        shares = {row["drafter"]: row["first_choice"] for row in own}
        first = max(shares, key=lambda drafter: shares[drafter])
        [interval] = [row["interval"] for row in own if row["drafter"] == first]
        best.append(
            {
                "temperature": temperature,
                "domain": domain,
                "best": first,
                "is_expert": first == f"draft-{domain}",
                "first_choice": shares[first],
                "interval": interval,
                "generalist": shares[GENERALIST],
                "worst": min(shares.values()),
            }
        )
    return {
        "by_domain": best,
        "domains": len(best),
        "domains_led_by_their_expert": sum(entry["is_expert"] for entry in best),
    }
