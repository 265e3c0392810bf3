"""Findings on drafters that learn: what their curves end at, and what requests gain by it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_lab.experiments.experiment import CellResult, JsonRow, grouped, sum_of_checks
from cosine_lab.report.intervals import ratio_and_interval

BEFORE: Final = "before learning"
AFTER: Final = "after learning"
EXPERT: Final = "an expert of the domain in its place"
LEARNING: Final = "one learns"
SHIPPED_ONLY: Final = "nobody learns"
NEW_DOMAIN: Final = "the new domain"
OWN_DOMAIN: Final = "its own domain"


def findings_of(rows: Sequence[JsonRow], swarms: Mapping[tuple[Any, ...], CellResult], *, seed: int) -> JsonRow:
    """The ends of the curves, requests after learning against before, and the quarters of swarms."""
    requests = [row for row in rows if row["part"] == "requests"]
    curves = grouped((row for row in rows if row["part"] == "curve"), "family", "domain")
    ends = [max(curve, key=lambda row: int(row["learned_tokens"])) for curve in curves.values()]
    return {
        "gains": [row for row in ends if row["domain_is"] == NEW_DOMAIN],
        "losses": [{**row, "lost_points": -row["gain_points"]} for row in ends if row["domain_is"] == OWN_DOMAIN],
        "against": list(_against(requests, seed=seed)),
        "quarters": list(_quarters(swarms, seed=seed)),
        **sum_of_checks([row for row in rows if row["part"] != "curve"]),
    }


def _against(rows: Sequence[JsonRow], *, seed: int) -> Iterator[JsonRow]:
    """Requests after learning over before, under each circumstance; and with the expert over after."""
    for (family, domain, temperature), together in grouped(rows, "family", "domain", "temperature").items():
        by_way = {row["way"]: row for row in together}
        pairs = [(way, way.replace(AFTER, BEFORE)) for way in by_way if way.startswith(AFTER)]
        if EXPERT in by_way:
            pairs.append((AFTER, EXPERT))
        for way, other in pairs:
            yield {
                "family": family,
                "domain": domain,
                "temperature": temperature,
                "way": way,
                "over": other,
                **ratio_and_interval(by_way[other]["prompt_s"], by_way[way]["prompt_s"], seed=seed),
            }


def _quarters(swarms: Mapping[tuple[Any, ...], CellResult], *, seed: int) -> Iterator[JsonRow]:
    """In each quarter of the same requests, how many times as fast they are where one learns."""
    for (place, way), result in swarms.items():
        if way != LEARNING:
            continue
        others = {one.number: one.seconds for one in swarms[place, SHIPPED_ONLY].report.results}
        for quarter, results in enumerate(result.report.parts(), 1):
            seconds = [one.seconds for one in results]
            yield {
                **place._asdict(),
                "quarter": quarter,
                **ratio_and_interval([others[one.number] for one in results], seconds, seed=seed),
            }
