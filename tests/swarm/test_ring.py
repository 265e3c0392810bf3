"""A model in parts in virtual time: several passes under way for one request, and texts as of the whole model."""

from typing import Any

import pytest

from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.simulation.report import RequestEnding, SimulationReport
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import EngineSource, Scenario
from cosine_lab.simulation.stages import LAYERS, even_parts
from cosine_protocol.errors import UsageError
from tests.thoroughness import quick_first


def ring(**options: Any) -> SimulationReport:
    """Four requests over three stages of 15 ms in a ring of 200 ms."""
    asked: dict[str, Any] = {
        "profile": "15/3",
        "stages": 3,
        "drafters": 2,
        "fidelities": (0.9, 0.7),
        "max_new_tokens": 40,
    }
    return run_scenario(Scenario(**(asked | options)))


def checked(report: SimulationReport) -> SimulationReport:
    assert report.violations() == []
    assert report.mismatches == 0
    return report


@pytest.mark.parametrize("number", quick_first(range(len(ALL_STRATEGIES))))
def test_every_strategy_gives_the_target_s_text_over_a_ring(number: int) -> None:
    strategy, temperature = sorted(ALL_STRATEGIES)[number], 0.8 * (number % 2)
    report = checked(ring(strategy=strategy, temperature=temperature, requests=2, max_new_tokens=24))
    assert len(report.finished) == 2


@pytest.mark.parametrize("seed", quick_first([0, 1]))
def test_eight_clients_at_once_read_the_target_s_text(seed: int) -> None:
    report = checked(
        ring(seed=seed, clients=8, requests=1, max_new_tokens=16, temperature=0.8 * (seed % 2), jitter_ms=5.0)
    )
    assert len(report.finished) == 8
    assert sum(result.accepted for result in report.results) > 0


@pytest.mark.thorough
def test_passes_under_way_together_are_faster_than_one_after_the_other() -> None:
    recorded = {"source": EngineSource.TRACES, "drafters": 5, "requests": 2, "max_new_tokens": 48}
    together, apart, plain = (
        sum(result.seconds for result in checked(ring(**(recorded | options))).results)
        for options in ({}, {"most_under_way": 1}, {"strategy": "plain"})
    )
    assert 1.1 * together < apart < plain


def test_a_stage_that_dies_is_replaced_and_texts_go_on() -> None:
    report = checked(ring(stage_copies=2, faults="kill-stage=1@1", clients=3, requests=1))
    assert len(report.finished) == 3


def test_without_a_spare_requests_end_with_the_layers_that_are_missing() -> None:
    report = ring(faults="kill-stage=1@1", clients=2, requests=1, timeout_s=30.0)
    assert [result.ending for result in report.results] == [RequestEnding.FAILED] * 2
    assert all("are held by nobody" in result.error for result in report.results)
    # The rest of what was asked for before it died came, and all of it was the target's.
    assert all(result.is_match for result in report.results)


def test_a_ring_takes_no_less_time_than_its_stages() -> None:
    with pytest.raises(UsageError, match="4 stages take longer than the traversal_ms of 50"):
        ring(stages=4, traversal_ms=50.0)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, LAYERS])
def test_parts_hold_all_layers_once(parts: int) -> None:
    held = even_parts(parts)
    assert len(held) == parts
    assert [layer for layers in held for layer in range(layers.first, layers.end)] == list(range(LAYERS))
