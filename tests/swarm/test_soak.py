"""Small random swarms with faults and liars: text is the target's, nothing hangs, nothing leaks."""

from typing import Final

import pytest

from cosine_lab.simulation.soak import run_soak
from tests.thoroughness import quick_first

CHECKED_SEEDS: Final = 50
SOAKED_SEEDS: Final = 1000
CHUNK: Final = 25

CHUNKS: Final = quick_first(range(0, SOAKED_SEEDS, CHUNK), 0, checked=CHECKED_SEEDS // CHUNK)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", CHUNKS)
def test_every_seed_keeps_every_promise(first: int) -> None:
    report = run_soak(range(first, first + CHUNK))
    assert report.runs == CHUNK
    assert [(failure.command, failure.violations) for failure in report.failures] == []
