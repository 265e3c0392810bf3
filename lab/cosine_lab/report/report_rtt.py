"""The section of docs/benchmarks.md on one request at a time, by round-trip time."""

from typing import Final

from cosine_lab.report.markdown import Row, Rows
from cosine_lab.report.plots import BarPlot, LinePlot
from cosine_lab.report.report_parts import (
    BEST,
    EXACT,
    KEPT,
    MACHINES,
    PLACE,
    SAMPLED,
    FindingLine,
    Section,
    found,
    pivoted,
    rows,
)
from cosine_lab.report.rtt_findings import ALONE, BESIDE, EQUIPPED, NEAR_MS, REMOTE


def at_their_best(result: Row) -> Rows:
    """The rows of the sweep twice: with rivals as strong as they can be made, and with rivals as published."""
    sweep = [row for row in result["rows"] if row["part"] == "sweep" and row["strategy"] != REMOTE]
    strongest = [row for row in sweep if row["strategy"] == ALONE or row["strategy"].endswith((EQUIPPED, BESIDE))]
    named = {"plain", "cosine"}
    return [
        {**row, "rivals": told}
        for told, rivals in (
            ("rivals at their best", strongest),
            ("rivals as published", [row for row in sweep if row not in strongest]),
        )
        for row in sweep
        if row in rivals or row["strategy"] in named
    ]


RTT: Final = Section(
    "One request at a time, by round-trip time",
    (
        FindingLine(f"least speedup of `cosine` ({PLACE})", "speedup", found("lowest_speedup"), least=0.98),
        FindingLine("least speedup of a single prompt", "worst_prompt_speedup", found()),
        FindingLine("points, of {points}, at which it is ahead of every other", "points_ahead", found()),
        FindingLine(f"least ratio to the best other ({BEST}; {PLACE})", "ratio", found("closest"), least=0.99),
        FindingLine(
            f"the same up to {NEAR_MS:g} ms ({BEST}; {PLACE})", "ratio", found("closest_of_near"), least=1.15
        ),
        FindingLine(f"ratio to speculative ({PLACE})", "ratio_to_speculative", found("at_main_rtt"), least=1.5),
        FindingLine("tokens generated in all runs", "tokens", found()),
        EXACT,
        KEPT,
    ),
    (
        LinePlot("rtt", at_their_best, f"{MACHINES}, {{rivals}}", "{strategy}", "rtt_ms", "speedup", "interval"),
        BarPlot("ablation", rows(part="ablation"), PLACE, "{label}", "{order}", "speedup"),
    ),
    (
        pivoted(
            "Speedup by RTT in ms, with its interval. `cosine` is what ships; rivals stand as published, and as "
            "strong as they can be made here: on free pacing with the same drafter and copying at the verifier, in "
            "rounds beside the verifier. Intervals are 95 %, by bootstrap over {prompts} prompts:",
            rows(part="sweep"),
            SAMPLED,
            "{rtt_ms}",
            "{speedup} ({interval})",
        ),
        pivoted(
            "`cosine` over the best of all others, with its interval:",
            found("against_best_other"),
            "T {temperature}",
            "{rtt_ms}",
            "{ratio} ({interval}; {best_other})",
        ),
        pivoted(
            "`cosine` without anything of the verifier's own, its client coordinating; and `dsi-2`, with two "
            "verifiers, whose target is stepped through the client and thus, unlike the paper's, waits for it:",
            rows(part="more"),
            SAMPLED,
            "{rtt_ms}",
            "{speedup} ({interval})",
        ),
        pivoted(
            "On other machines, at {rtt_ms} ms, {prompts} prompts:",
            rows(part="profile"),
            "{strategy}",
            MACHINES,
            "{speedup} ({interval})",
        ),
        pivoted(
            "Share of the speed of runs that know the text, without anything of the verifier's own:",
            found("bounds"),
            "{label}",
            PLACE,
            "{share}",
        ),
        pivoted(
            "Speedup with parts added, then left out; in brackets the factor that each brings:",
            found("parts"),
            "{label}",
            PLACE,
            "{speedup} ({gain})",
        ),
        pivoted(
            "The texts: of all runs of {run_tokens} tokens, the share that the same text has not had before. The "
            "less is new, the more can be copied:",
            lambda result: result["setup"]["distinct_runs"],
            "T {temperature}",
            "{domain}",
            "{share}",
        ),
    ),
)
