"""The section of docs/benchmarks.md on drafters that learn."""

from typing import Final

from cosine_lab.report.learn_findings import AFTER, BEFORE, EXPERT
from cosine_lab.report.plots import LinePlot
from cosine_lab.report.report_parts import EXACT, KEPT, FindingLine, Section, columns, found, pivoted, rows

AT: Final = "{family}: {domain}, T {temperature}"

LEARN: Final = Section(
    "Drafters that learn",
    (
        FindingLine(
            "points that first choices gain, {family}: {drafter} after {learned_tokens} tokens of {domain} "
            "({gain_interval})",
            "gain_points",
            found("gains"),
            least=15.0,
        ),
        FindingLine(
            "points that they lose in its own domain, {family}: {domain}",
            "lost_points",
            found("losses"),
            most=2.0,
        ),
        FindingLine(
            f"times as fast as before learning ({AT}; {{interval}})",
            "ratio",
            found("against", way=AFTER, over=BEFORE),
        ),
        FindingLine(
            f"the same over an expert by training in its place ({AT}; {{interval}})",
            "ratio",
            found("against", way=AFTER, over=EXPERT),
        ),
        FindingLine(
            f"times as fast as where nobody learns, last quarter of a swarm's requests ({AT}; {{interval}})",
            "ratio",
            found("quarters", quarter=4),
        ),
        EXACT,
        KEPT,
    ),
    (
        LinePlot(
            "learn",
            rows(part="curve"),
            "{family}: {drafter} learns {learns}",
            "{domain_is}",
            "learned_tokens",
            "first_choice",
            "interval",
            is_linear=True,
        ),
        LinePlot(
            "learn_swarm",
            rows(part="swarm"),
            AT,
            "{way}",
            "quarter",
            "tokens_per_s",
            "tokens_per_s_interval",
            is_linear=True,
        ),
    ),
    (
        columns(
            "Share of tokens that are the drafter's first choice, by the tokens it has learned from; gains are in "
            "points, over the drafter as shipped:",
            rows(part="curve"),
            "family drafter domain learned_tokens first_choice interval gain_points gain_interval texts tokens",
        ),
        pivoted(
            "Tokens/s of requests, with the interval, and in brackets how many times plain decoding that is:",
            rows(part="requests"),
            "{family}: {way}",
            "{domain}, T {temperature}",
            "{tokens_per_s} [{tokens_per_s_interval}] ({speedup})",
        ),
        pivoted(
            "Requests after learning, over the same otherwise:",
            found("against"),
            "{family}: {way}, over {over}",
            "{domain}, T {temperature}",
            "{ratio} ({interval})",
        ),
        pivoted(
            "A swarm that learns from what it is asked, quarter after quarter of its requests: tokens/s, with the "
            "interval, and the learned tokens of the version that serves at the end:",
            rows(part="swarm"),
            f"{AT}: {{way}}",
            "{quarter}",
            "{tokens_per_s} [{tokens_per_s_interval}] ({version_at_the_end})",
        ),
        pivoted(
            "Times as fast as the same requests where nobody learns:",
            found("quarters"),
            AT,
            "{quarter}",
            "{ratio} ({interval})",
        ),
    ),
)
