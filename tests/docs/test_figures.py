"""Figures that pages quote are those of the benchmarks and tests they come from."""

import json
import re
from typing import Any, Final

import pytest

from tests.docs.pages import DOCS
from tests.swarm.test_soak import SEEDS

SECURITY: Final = (DOCS / "security.md").read_text("utf-8")
QUESTIONS: Final = (DOCS / "faq.md").read_text("utf-8")


def told(pattern: str, text: str) -> str:
    (figure, *_) = re.findall(pattern, text)
    return str(figure)


def published(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return result


@pytest.mark.parametrize(
    ("rtt_ms", "pattern"), [(20.0, r"([\d.]+) times as fast"), (300.0, r"([\d.]+) times at 300 ms")]
)
def test_the_speed_that_is_told(rtt_ms: float, pattern: str) -> None:
    place = {"part": "sweep", "strategy": "cosine", "temperature": 0.0, "rtt_ms": rtt_ms}
    [row] = [row for row in published("rtt")["rows"] if place.items() <= row.items()]
    assert told(pattern, QUESTIONS) == f"{row['speedup']:.2f}"


def test_the_speed_by_the_clock() -> None:
    ways = {(way["temperature"], way["way"]): way for way in published("here")["findings"]["ways"]}
    [(low, high)] = re.findall(r"ran at ([\d.]+) to ([\d.]+) times", QUESTIONS)
    ours = [ways[temperature, "cosine"]["times_plain"] for temperature in (0.0, 0.8, 1.0)]
    assert (low, high) == (f"{min(ours):.2f}", f"{max(ours):.2f}")


def test_the_tokens_that_were_compared() -> None:
    findings = published("rtt")["findings"]
    assert told(r"0 of ([\d,]+) tokens", SECURITY) == f"{findings['tokens']:,}"
    assert findings["mismatches"] == 0


def test_what_the_costliest_liar_costs() -> None:
    measured = f"{published('liars')['findings']['most_percent']:.1f}"
    assert told(r"requests take ([\d.]+) % longer", SECURITY) == measured
    assert told(r"measured: at most ([\d.]+) %", QUESTIONS) == measured


def test_the_seeds_of_the_soak() -> None:
    assert told(r"([\d,]+) seeds", SECURITY) == f"{SEEDS:,}"
