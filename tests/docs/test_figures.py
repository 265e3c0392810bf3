"""Figures that pages quote are those of the benchmarks and tests they come from."""

import re
from typing import Final

import pytest

from tests.docs.pages import DOCS
from tests.swarm.test_soak import SEEDS

BENCHMARKS: Final = (DOCS / "benchmarks.md").read_text("utf-8")
SECURITY: Final = (DOCS / "security.md").read_text("utf-8")
QUESTIONS: Final = (DOCS / "faq.md").read_text("utf-8")


def found(pattern: str, text: str) -> str:
    (figure, *_) = re.findall(pattern, text)
    return str(figure)


def speedups() -> dict[str, str]:
    """Of `cosine` over plain decoding at temperature 0, by RTT in ms: the first table of the page."""
    header = found(r"(?m)^\| strategy \|( 0 \|.*)$", BENCHMARKS)
    row = found(r"(?m)^\| cosine \|(.*)$", BENCHMARKS)
    return dict(zip(*([cell.strip() for cell in line.split("|")] for line in (header, row)), strict=True))


@pytest.mark.parametrize(
    ("rtt_ms", "told"), [("20", r"([\d.]+) times as fast"), ("300", r"([\d.]+) times at 300 ms")]
)
def test_the_speed_that_is_told(rtt_ms: str, told: str) -> None:
    assert found(told, QUESTIONS) == speedups()[rtt_ms]


def test_the_tokens_that_were_compared() -> None:
    assert found(r"0 of ([\d,]+) tokens", SECURITY) == found(
        r"([\d,]+) tokens were generated in these runs", BENCHMARKS
    )
    assert "0 requests differ from plain decoding" in BENCHMARKS


def test_what_the_costliest_liar_costs() -> None:
    measured = found(r"The costliest liar .* makes requests take ([\d.]+) % longer", BENCHMARKS)
    assert found(r"requests take ([\d.]+) % longer", SECURITY) == measured
    assert found(r"measured: at most ([\d.]+) %", QUESTIONS) == measured


def test_the_seeds_of_the_soak() -> None:
    assert found(r"([\d,]+) seeds", SECURITY) == f"{SEEDS:,}"
