"""The section of docs/benchmarks.md on a target in parts."""

from typing import Final

from cosine_lab.experiments.entrants import OURS
from cosine_lab.report.plots import LinePlot
from cosine_lab.report.report_parts import EXACT, KEPT, FindingLine, Section, columns, found, pivoted, rows
from cosine_lab.report.ring_findings import TOLD

AT: Final = "{traversal_ms} ms, T {temperature}"
AIMED_AT_MS: Final = 200.0
"""The traversal that the targets were set for."""

RING: Final = Section(
    "A model in parts",
    (
        FindingLine(
            f"times plain decoding over the ring, `cosine` ({AT})",
            "speedup",
            found("against", way=OURS.name, traversal_ms=AIMED_AT_MS),
            least=5.0,
        ),
        FindingLine(
            f"times the best of chain, tree and chunks, `cosine` ({AT}; {{best_rival}})",
            "ratio",
            found("against", way=OURS.name, traversal_ms=AIMED_AT_MS),
            least=1.2,
        ),
        FindingLine(f"times plain decoding, {{way}} ({AT})", "speedup", rows(way=TOLD)),
        FindingLine("least of `cosine` in all its ways over plain decoding", "lowest_speedup", found(), least=1.0),
        FindingLine(f"the same of the rivals ({{way}}; {AT})", "speedup", found("lowest_of_rivals")),
        EXACT,
        KEPT,
    ),
    (
        LinePlot(
            "ring", rows(), "T {temperature}", "{way}", "traversal_ms", "tokens_per_s", "tokens_per_s_interval"
        ),
    ),
    (
        pivoted(
            "Tokens/s by the time of a traversal, with its interval, and in brackets how many times plain decoding "
            "that is; {prompts} prompts, texts of at most {max_new_tokens} tokens:",
            rows(),
            "T {temperature}: {way}",
            "{traversal_ms} ms",
            "{tokens_per_s} [{tokens_per_s_interval}] ({speedup})",
        ),
        pivoted(
            "Over the best of the three rivals, with its interval:",
            found("against"),
            "T {temperature}: {way}",
            "{traversal_ms} ms",
            "{ratio} ({interval}; {best_rival})",
        ),
        columns(
            "Of the tokens of these texts, the share that is among the candidates of any drafter or of copying, "
            "and the share that is somebody's first choice:",
            found("coverage"),
            "temperature positions covered first_choices",
        ),
        columns(
            "What that allows. Nothing can follow a token that nobody offers before a pass has brought it, so each "
            "costs a whole traversal: the bound is for all others being free, that by levels for passes that carry "
            "one level of the tree each. Beside them tokens/s as measured, also with drafters told which of their "
            "candidates are right, so that no place in a pass goes to others, and what a token that somebody "
            "offers took with `cosine`:",
            found("limits"),
            "temperature traversal_ms plain cosine told_which_are_right bound bound_times_plain bound_by_levels "
            "bound_by_levels_times_plain covered_token_ms",
        ),
    ),
)
