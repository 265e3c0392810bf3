"""How often each drafter says what the target says, domain by domain: the traces alone, nothing is run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_node.bench.cells import TEST, Say
from cosine_node.simulation.traces import Trace, TraceSet

NAME: Final = "acceptance"
RANKS: Final = (1, 4, 8)
GENERALIST: Final = "draft-general"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceOptions:
    """Which traces to count; `prompts` bounds those of each domain, None takes all."""

    split: str = TEST
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompts: int | None = None

    @classmethod
    def quick(cls) -> "AcceptanceOptions":
        """A small form for tests."""
        return cls(prompts=2)


def run(options: AcceptanceOptions, *, say: Say) -> dict[str, object]:
    """The matrix of drafters and domains; one JSON object (docs/benchmarks.md)."""
    traces = TraceSet.load_shipped()
    rows = [row for temperature in options.temperatures for row in _matrix(traces, options, temperature)]
    say(f"{len(rows)} pairs of a drafter and a domain")
    return {
        "name": NAME,
        "what": "How often the target's next token is a drafter's first choice, or among its first four or eight, "
        "given all tokens before it.",
        "command": f"cosine-node bench {NAME}",
        "setup": {
            "traces": f"the split {options.split}, recorded from the embedded models with shared noise",
            "candidates": "by falling score after the same noise as the target's, at the same temperature",
        },
        "rows": rows,
        "findings": _findings(rows),
    }


def _matrix(traces: TraceSet, options: AcceptanceOptions, temperature: float) -> Iterator[dict[str, Any]]:
    chosen = traces.select(split=options.split, temperature=temperature)
    for domain in sorted({trace.domain for trace in chosen}):
        own = [trace for trace in chosen if trace.domain == domain][: options.prompts]
        for drafter in sorted(own[0].drafters):
            yield {"temperature": temperature, "domain": domain, "drafter": drafter} | _shares(own, drafter)


def _shares(traces: Sequence[Trace], drafter: str) -> dict[str, Any]:
    tokens = sum(len(trace.stream) for trace in traces)
    hits = {rank: sum(_hits(trace, drafter, rank) for trace in traces) for rank in RANKS}
    overlap = sum(float(trace.drafters[drafter].overlap.sum()) for trace in traces)
    return {
        "first_choice": hits[1] / tokens,
        "among_4": hits[4] / tokens,
        "among_8": hits[8] / tokens,
        "overlap": overlap / tokens,
        "tokens": tokens,
        "prompts": len(traces),
    }


def _hits(trace: Trace, drafter: str, rank: int) -> int:
    said = trace.drafters[drafter].candidate_tokens[:, :rank].tolist()
    return sum(token in candidates for token, candidates in zip(trace.stream, said, strict=True))


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For every domain its best drafter, and how far that is ahead of the generalist and of the worst."""
    places = dict.fromkeys((row["temperature"], row["domain"]) for row in rows)
    best = []
    for temperature, domain in places:
        by_drafter = {
            row["drafter"]: row["first_choice"]
            for row in rows
            if (row["temperature"], row["domain"]) == (temperature, domain)
        }
        first = max(by_drafter, key=lambda drafter: by_drafter[drafter])
        best.append(
            {
                "temperature": temperature,
                "domain": domain,
                "best": first,
                "is_expert": first == f"draft-{domain}",
                "first_choice": by_drafter[first],
                "generalist": by_drafter[GENERALIST],
                "worst": min(by_drafter.values()),
            }
        )
    return {
        "by_domain": best,
        "domains": len(best),
        "domains_led_by_their_expert": sum(entry["is_expert"] for entry in best),
    }
