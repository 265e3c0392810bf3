"""The section of docs/benchmarks.md on many requests at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_node.bench.markdown import bullets, paragraphs, percent, table, times

Result = Mapping[str, Any]
Row = Mapping[str, Any]

LATENCY_SAVED: Final = 0.4
THROUGHPUT: Final = 1.6
SATURATED: Final = "saturated"
COLUMNS: Final[Mapping[str, str]] = {
    "strategy": "strategy",
    "request_p50_ms": "request p50 ms",
    "request_p95_ms": "p95 ms",
    "token_p50_ms": "a token p50 ms",
    "tokens_per_s": "tokens per s",
    "gpu_seconds_per_token": "machine s per token",
    "accepted_tokens_per_round": "accepted per pass",
    "rows_per_pass": "requests per pass",
    "verifier_busy_share": "verifiers busy",
    "options": "options",
}


def crowd_section(result: Result) -> str:
    """Latency and throughput, one table for each load, kind of machines and temperature."""
    rows, findings = result["rows"], result["findings"]
    places = dict.fromkeys((row["load"], row["profile"], row["temperature"], row["clients"]) for row in rows)
    return paragraphs([bullets(_sentences(findings)), *(_table(rows, place) for place in places)])


def _sentences(findings: Mapping[str, Any]) -> Iterator[str]:
    for entry in findings["settings"]:
        saved = entry["latency_reduction_percent"] / 100
        if entry["load"] == SATURATED:
            is_met, target = entry["throughput_ratio"] >= THROUGHPUT, f"{THROUGHPUT:g}x the throughput"
        else:
            is_met, target = saved >= LATENCY_SAVED, f"{percent(LATENCY_SAVED)} less latency"
        yield (
            f"{entry['load'].capitalize()}, {entry['profile']}, temperature {entry['temperature']:g}: "
            f"a token takes {_compared(saved)} time at the median than with the best other "
            f"({entry['best_latency_of_others']}), "
            f"and throughput is {times(entry['throughput_ratio'])} that of the best other "
            f"({entry['best_throughput_of_others']}), {percent(entry['throughput_of_oracle'])} of that of a "
            f"coordinator that knows the text, {percent(entry['throughput_of_bound'])} of what verifiers that "
            f"never idle could do. The target, {target}, is {'met' if is_met else 'not met'}."
        )
    yield (
        f"{findings['mismatches']} texts differ from the target's own, and {findings['violations']} other promises "
        f"were broken. The less busy verifier had at least {percent(findings['least_verifier_share'])} of the work."
    )


def _compared(saved: float) -> str:
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'}"


def _table(rows: Sequence[Row], place: tuple[str, str, float, int]) -> str:
    load, profile, temperature, clients = place
    chosen = [row for row in rows if (row["load"], row["profile"], row["temperature"], row["clients"]) == place]
    return f"{load.capitalize()}, {clients} clients, {profile}, temperature {temperature:g}:\n\n" + table(
        list(COLUMNS.values()), [[row.get(name) for name in COLUMNS] for row in chosen]
    )
