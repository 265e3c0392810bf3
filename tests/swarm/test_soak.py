"""Eight hundred small random swarms: text is the target's, nothing hangs, nothing leaks."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from cosine_lab.simulation.soak import SoakReport, run_soak

# Each waits for the chunks before it as well, on a machine that other tests may share.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

SEEDS = 800
CHUNK = 100


@pytest.fixture(scope="module")
def reports() -> Iterator[Mapping[int, "Future[SoakReport]"]]:
    """By the first seed of each; worked on by as many processes as there are processors."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield {first: pool.submit(run_soak, range(first, first + CHUNK)) for first in range(0, SEEDS, CHUNK)}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_every_promise(first: int, reports: Mapping[int, "Future[SoakReport]"]) -> None:
    report = reports[first].result()
    assert report.runs == CHUNK
    assert [(failure.command, failure.violations) for failure in report.failures] == []
