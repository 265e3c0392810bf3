"""The section of docs/benchmarks.md on drafters beside the verifier."""

from typing import Final

from cosine_lab.experiments.near import LINKS, MAPS, STEADY
from cosine_lab.report.plots import LinePlot
from cosine_lab.report.report_parts import EXACT, KEPT, FindingLine, Section, found, pivoted, rows

NEAR: Final = Section(
    "Near the verifier",
    (
        FindingLine(
            "least speedup of `cosine`, with a drafter at the verifier and without",
            "lowest_speedup",
            found(),
            least=0.98,
        ),
        FindingLine(
            "the same with jitter, with lost packets, over a home's links, and between cities",
            "lowest_speedup_of_links",
            found(),
            least=0.98,
        ),
        FindingLine(
            "least ratio to the best that stands beside the verifier alone", "lowest_ratio", found(), least=0.99
        ),
        EXACT,
        KEPT,
    ),
    (
        LinePlot(
            "near",
            rows(prompts_are="short prompts", link=STEADY),
            "{family}, {profile}, T {temperature}",
            "{way}",
            "rtt_ms",
            "speedup",
        ),
    ),
    (
        pivoted(
            "Speedup by RTT in ms, with its interval:",
            rows(link=STEADY),
            "{family}, {prompts_are}, {profile}, T {temperature}: {way}",
            "{rtt_ms}",
            "{speedup} ({interval})",
        ),
        pivoted(
            "Over other links, at an RTT of {rtt_ms} ms:",
            lambda result: [row for row in result["rows"] if row["link"] in LINKS.keys() - {STEADY}],
            "{family}, {profile}, T {temperature}: {way}",
            "{link}",
            "{speedup} ({interval})",
        ),
        pivoted(
            "With client, verifier and drafters in cities at unequal distances:",
            lambda result: [row for row in result["rows"] if row["link"] in MAPS],
            "{family}, {profile}, T {temperature}: {way}",
            "{link}, {rtt_ms} ms",
            "{speedup} ({interval})",
        ),
        pivoted(
            "`cosine` with a drafter at the verifier, against the best that stands beside it alone:",
            found("against_beside", link=STEADY),
            "{family}, {prompts_are}, {profile}, T {temperature}",
            "{rtt_ms}",
            "{ratio} ({best_beside})",
        ),
    ),
)
