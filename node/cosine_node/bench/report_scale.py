"""The section of docs/benchmarks.md on large networks."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cosine_node.bench.markdown import bullets, paragraphs, percent, table

Result = Mapping[str, Any]

CHOICE_US: Final = 1000.0
CHOICE_CANDIDATES: Final = 1000
COLUMNS: Final[Mapping[str, str]] = {
    "nodes": "nodes",
    "clients": "clients",
    "finished": "finished",
    "tokens_per_s": "tokens per virtual s",
    "latency_p50_s": "p50 s",
    "latency_p95_s": "p95 s",
    "client_bytes_read": "bytes read to find nodes, a client",
    "stream_bytes_per_client": "bytes streamed, a client",
    "records_per_key_max": "records at the fullest key",
    "peak_requests_at_a_verifier": "most requests at a verifier",
}


def scale_section(result: Result) -> str:
    """How figures grow with the number of nodes."""
    rows = result["rows"]
    return paragraphs(
        [
            bullets(_sentences(result["findings"])),
            table(list(COLUMNS.values()), [[row.get(name) for name in COLUMNS] for row in rows]),
        ]
    )


def _sentences(findings: Mapping[str, Any]) -> Iterator[str]:
    largest = findings["largest"]
    finished = "every request finished" if findings["all_finished"] else "not every request finished"
    yield (
        f"In the largest swarm, of {largest['nodes']:,} live nodes and {largest['clients']:,} clients that ask at "
        f"about the same time, {largest['tokens']:,} tokens were generated; in all swarms {finished}, and "
        f"{findings['mismatches']} texts differ from the target's own."
    )
    yield (
        f"From the smallest swarm to the largest, what a client reads to find nodes grows as N to the power "
        f"{findings['client_bytes_read_exponent']:.2f}, what it streams as N to the power "
        f"{findings['stream_bytes_per_client_exponent']:.2f}."
    )
    share = findings["records_per_key_max"] / findings["records_per_key_limit"]
    yield (
        f"The fullest key of the DHT held {findings['records_per_key_max']:.0f} records, {percent(share)} of the "
        f"{findings['records_per_key_limit']} it may hold."
    )
    is_met = findings["choosing_candidates"] >= CHOICE_CANDIDATES and findings["choosing_us"] < CHOICE_US
    yield (
        f"Choosing a verifier and drafters among {findings['choosing_candidates']:,} candidates each takes "
        f"{findings['choosing_us']:.0f} us of real time on the machine that measured it. The target, below 1 ms at "
        f"{CHOICE_CANDIDATES:,} candidates, is {'met' if is_met else 'not met'}."
    )
    yield (
        f"A decision of the strategy took {findings['strategy_decision_p50_us']:.0f} us (p50) and "
        f"{findings['strategy_decision_p95_us']:.0f} us (p95) of real time; virtual time charges "
        f"{findings['charged_per_write_us']:.0f} us for every write."
    )
