"""Findings from the speeds of ways to feed a ring of stages, and from what the drafters know of the texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cosine_lab.experiments.entrants import OURS, PLAIN
from cosine_lab.experiments.experiment import JsonRow, grouped, sum_of_checks
from cosine_lab.report.intervals import ratio_and_interval
from cosine_lab.simulation.traces import CANDIDATES, Trace
from cosine_node.engine.ngram import FollowerIndex

CHAIN: Final = "synchronous chain"
TREE: Final = "synchronous tree"
CHUNKS: Final = "chunks with flush"
UNTRIED: Final = "cosine, without trials of the client"
TOLD: Final = "cosine, drafters told which candidates are right"
BESIDE: Final = "cosine, a drafter beside the head"
"""Labels of rows, the first three of rivals. Drafters that are told still lack what is none of their candidates."""
RIVAL_WAYS: Final = (CHAIN, TREE, CHUNKS)
OUR_WAYS: Final = (OURS.name, UNTRIED, BESIDE)
PLACE: Final = ("temperature", "traversal_ms")
"""The fields that name a point of the sweep."""


def coverage_of(traces: Sequence[Trace], *, tokens: int) -> JsonRow:
    """The share of tokens `covered`: among what any drafter, or copying, offers in their place.

    Of each text the first `tokens` tokens count; `first_choices` is the share that is somebody's first choice.
    """
    positions = covered = first = 0
    for trace in traces:
        index = FollowerIndex()
        for position, token in enumerate(trace.stream[:tokens]):
            copied = [found for found, _ in index.estimate().found[:CANDIDATES]]
            offers = [copied, *(own.candidate_tokens[position].tolist() for own in trace.drafters.values())]
            positions += 1
            covered += any(token in offer for offer in offers)
            first += any(offer[:1] == [token] for offer in offers)
            index.extend([token])
    return {"positions": positions, "covered": covered / positions, "first_choices": first / positions}


def findings_of(
    rows: Sequence[JsonRow], coverage: Mapping[float, JsonRow], *, stage_s: float, seed: int
) -> JsonRow:
    """What ships against plain decoding and the best rival, the floors, and the limit that coverage sets."""
    ours = [row for row in rows if row["way"] in OUR_WAYS]
    rivals = [row for row in rows if row["way"] in RIVAL_WAYS]
    return {
        "against": list(_against(rows, seed=seed)),
        "lowest_speedup": min(row["speedup"] for row in ours),
        "lowest_of_rivals": _place_of(min(rivals, key=lambda row: float(row["speedup"]))),
        "coverage": [{"temperature": temperature, **found} for temperature, found in coverage.items()],
        "limits": list(_limits(rows, coverage, stage_s=stage_s)),
        **sum_of_checks(rows),
    }


def _place_of(row: JsonRow) -> JsonRow:
    return {name: row[name] for name in ("way", *PLACE, "speedup")}


def _against(rows: Sequence[JsonRow], *, seed: int) -> Iterator[JsonRow]:
    """Each of our ways by the best rival at every point; ratios of total time."""
    for together in grouped(rows, *PLACE).values():
        best = max((row for row in together if row["way"] in RIVAL_WAYS), key=lambda row: float(row["speedup"]))
        for row in together:
            if row["way"] in OUR_WAYS:
                yield {
                    **_place_of(row),
                    "tokens_per_s": row["tokens_per_s"],
                    "best_rival": best["way"],
                    "best_rival_tokens_per_s": best["tokens_per_s"],
                    **ratio_and_interval(best["prompt_s"], row["prompt_s"], seed=seed),
                }


def _limits(rows: Sequence[JsonRow], coverage: Mapping[float, JsonRow], *, stage_s: float) -> Iterator[JsonRow]:
    """The most that tokens which nobody offers leave: what follows one cannot be under way before it is known.

    So each of them costs a traversal. With that alone the speed is `bound`; `bound_by_levels` is for passes that
    carry one level of the tree, so that every other token takes a pass of the slowest stage. `covered_token_ms` is
    what these took in truth.
    """
    for place, together in grouped(rows, *PLACE).items():
        temperature, traversal_ms = place
        by_way = {row["way"]: row for row in together}
        covered = coverage[temperature]["covered"]
        missed_s = (1.0 - covered) * traversal_ms / 1e3
        level_s = missed_s + covered * stage_s
        plain = by_way[PLAIN.name]["tokens_per_s"]
        token_s = 1.0 / by_way[OURS.name]["tokens_per_s"]
        yield {
            "temperature": temperature,
            "traversal_ms": traversal_ms,
            "covered": covered,
            "plain": plain,
            "cosine": by_way[OURS.name]["tokens_per_s"],
            "told_which_are_right": by_way[TOLD]["tokens_per_s"] if TOLD in by_way else None,
            "bound": 1.0 / missed_s if missed_s else None,
            "bound_times_plain": 1.0 / missed_s / plain if missed_s else None,
            "bound_by_levels": 1.0 / level_s,
            "bound_by_levels_times_plain": 1.0 / level_s / plain,
            "covered_token_ms": 1e3 * (token_s - missed_s) / covered,
        }
