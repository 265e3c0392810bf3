"""Tests of random small swarms with faults and liars."""

import pytest

from cosine_lab.simulation.soak import run_soak
from tests.thoroughness import quick_first

CHUNK = 25


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", quick_first(range(0, 1000, CHUNK), 0, checked=2))
def test_every_seed_keeps_every_promise(first: int) -> None:
    report = run_soak(range(first, first + CHUNK))
    assert report.runs == CHUNK
    assert [(failure.command, failure.violations) for failure in report.failures] == []
