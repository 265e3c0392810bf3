"""The section of docs/benchmarks.md on how many clients one verifier serves."""

from typing import Final

from cosine_lab.experiments.entrants import OURS
from cosine_lab.report.markdown import Row, Rows
from cosine_lab.report.plots import LinePlot
from cosine_lab.report.report_parts import (
    EXACT,
    KEPT,
    MACHINES,
    FindingLine,
    Section,
    columns,
    found,
    pivoted,
    rows,
)


def with_as_many_clients(result: Row) -> Rows:
    """Rows of everybody with the numbers of clients that what ships was tried with, the fewest first."""
    tried = {(row["temperature"], row["clients"]) for row in result["rows"] if row["way"] == OURS.name}
    among = [row for row in result["rows"] if (row["temperature"], row["clients"]) in tried]
    return sorted(among, key=lambda row: int(row["clients"]))


CAPACITY: Final = Section(
    "How many clients one verifier serves",
    (
        FindingLine("clients of `cosine` as it ships (T {temperature})", "clients", found("against")),
        FindingLine(
            "the same over those of the best other ({best_other}; T {temperature})",
            "ratio",
            found("against"),
            least=1.0,
        ),
        FindingLine(
            "clients with drafters elsewhere over those with a drafter at the verifier alone, and what the formula "
            "predicts (T {temperature})",
            "measured_ratio",
            found("against"),
            least="predicted_ratio",
        ),
        EXACT,
        KEPT,
    ),
    (LinePlot("capacity", rows(), MACHINES, "{way}", "clients", "token_p95_ms", "interval", "promise_ms"),),
    (
        columns(
            "The most clients that keep {promise_ms} ms a token, the 95th percentile of their requests with its "
            "interval, and the next number tried, which does not keep it:",
            found("capacities"),
            "temperature way clients drafters tokens_per_s token_p50_ms token_p90_ms token_p95_ms interval "
            "next_clients next_p95_ms next_interval",
        ),
        pivoted(
            "With as many clients, ms a token of the median request, the 90th percentile, and the 95th with its "
            "interval:",
            with_as_many_clients,
            "T {temperature}: {way}",
            "{clients}",
            "{token_p50_ms}, {token_p90_ms}, {token_p95_ms} ({interval})",
        ),
        columns(
            "Where the verifier's time goes with those clients, or with one where it serves none: passes of the "
            "target, of its own drafter, neither; tokens fed in a pass, and those a request got from one:",
            found("capacities"),
            "temperature way pass_ms fed_per_pass tokens_per_row target_share own_drafts_share idle_share "
            "drafters_busy_share",
        ),
        columns(
            "By the formula a verifier that others draft for serves 1 + gamma t_draft / t_verify times as many as "
            "one that makes gamma passes of its drafter before each of its own, here those of the drafter at the "
            "verifier alone with the most clients:",
            found("against"),
            "temperature gamma draft_ms verify_ms predicted_ratio measured_ratio",
        ),
        columns(
            "At {promise_ms} ms a token, without drafters elsewhere:",
            found("lax"),
            "temperature way clients tokens_per_s token_p50_ms token_p95_ms next_clients next_p95_ms "
            "own_drafts_share",
        ),
    ),
)
