"""Findings from the searches for the most clients of a verifier."""

from collections.abc import Sequence
from itertools import product
from typing import Final

from cosine_lab.experiments.entrants import OURS, PLAIN
from cosine_lab.experiments.experiment import JsonRow, grouped, sum_of_checks
from cosine_lab.report.markdown import shown
from cosine_lab.report.rtt_findings import ALONE, BASELINE, REMOTE

BESIDE_ROUNDS: Final = "rounds, drafters beside the verifier"
WAYS: Final = (OURS.name, REMOTE, ALONE, BESIDE_ROUNDS, BASELINE, PLAIN.name)
"""All ways by label, what ships first."""
_WORDS: Final = {PLAIN.name: "plain decoding"}
NOBODY_ELSE: Final = (ALONE, PLAIN.name)
"""Ways without drafters elsewhere. They take little to simulate, so a laxer promise is tried on them too."""


def capacity_of(rows: Sequence[JsonRow], way: str, temperature: float, *, promise_ms: float) -> JsonRow:
    """The most `clients` of a way that keep a promise, 0 if not even the fewest do, and the next count tried.

    The other fields are those of the row with that many clients, of the fewest where it is 0.
    """
    own = sorted(
        (row for row in rows if row["way"] == way and row["temperature"] == temperature),
        key=lambda row: int(row["clients"]),
    )
    kept = next((index for index, row in enumerate(own) if row["token_p95_ms"] > promise_ms), len(own))
    following = own[kept] if kept < len(own) else dict[str, None]()
    return {
        **own[max(0, kept - 1)],
        "promise_ms": promise_ms,
        "clients": own[kept - 1]["clients"] if kept else 0,
        "next_clients": following.get("clients"),
        "next_p95_ms": following.get("token_p95_ms"),
        "next_interval": following.get("interval"),
    }


def findings_of(rows: Sequence[JsonRow]) -> JsonRow:
    """The most clients of every way for the promise and the laxer one, and `cosine` against the others."""
    promise_ms, lax_ms = rows[0]["promise_ms"], rows[0]["lax_promise_ms"]
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    capacities = [
        capacity_of(rows, way, temperature, promise_ms=promise_ms)
        for temperature, way in product(temperatures, WAYS)
        if any(row["way"] == way and row["temperature"] == temperature for row in rows)
    ]
    return {
        "capacities": capacities,
        "lax": [
            capacity_of(rows, way, temperature, promise_ms=lax_ms)
            for temperature, way in product(temperatures, NOBODY_ELSE)
        ],
        "against": [
            _against({entry["way"]: entry for entry in capacities if entry["temperature"] == temperature})
            for temperature in temperatures
        ],
        **sum_of_checks(rows),
    }


def _against(found: dict[str, JsonRow]) -> JsonRow:
    """What ships against the best of the others, and drafting elsewhere by formula and, if it was, as measured."""
    ours, alone, remote = found[OURS.name], found[ALONE], found.get(REMOTE)
    best = max(
        (found[way] for way in (ALONE, BESIDE_ROUNDS, BASELINE, PLAIN.name)), key=lambda one: int(one["clients"])
    )
    return {
        "temperature": ours["temperature"],
        "clients": ours["clients"],
        "drafters": ours["drafters"],
        "plain_clients": found[PLAIN.name]["clients"],
        "best_other": best["way"],
        "best_other_clients": best["clients"],
        "ratio": ours["clients"] / best["clients"] if best["clients"] else None,
        "gamma": alone["gamma"],
        "draft_ms": alone["draft_ms"],
        "verify_ms": alone["pass_ms"],
        "predicted_ratio": 1.0 + alone["gamma"] * alone["draft_ms"] / alone["pass_ms"],
        "measured_ratio": remote["clients"] / alone["clients"] if remote and alone["clients"] else None,
    }


def sentences_of(findings: JsonRow) -> str:
    """The findings in words, what ships first."""
    told = [
        f"At T {shown(entry['temperature'])} it serves {entry['clients']} with `cosine` as it ships and "
        f"{entry['drafters']} drafters elsewhere, {entry['best_other_clients']} with the best of the others "
        f"({entry['best_other']}), {entry['plain_clients']} by plain decoding."
        for entry in findings["against"]
    ]
    for entries in grouped(findings["lax"], "temperature").values():
        promise = f"{shown(entries[0]['promise_ms'])} ms and T {shown(entries[0]['temperature'])}"
        served = ", ".join(f"{entry['clients']} with {_WORDS.get(entry['way'], entry['way'])}" for entry in entries)
        told.append(f"At {promise} it serves {served}.")
    told.append("The curves charge tokens of a pass and not the contexts that it reads.")
    return " ".join(told)
