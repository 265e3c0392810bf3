"""Two thousand small random swarms: text is the target's, nothing hangs, nothing leaks."""

import pytest

from cosine_node.simulation.soak import run_soak

SEEDS = 2000
CHUNK = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_every_promise(first: int) -> None:
    report = run_soak(range(first, first + CHUNK))
    assert report.runs == CHUNK
    assert [(failure.command, failure.violations) for failure in report.failures] == []
