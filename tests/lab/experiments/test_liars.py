"""The experiment on liars: who is added, how long the requests are, and its smallest form."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.liars import LIES, NOBODY, LiarsOptions, LongPrompts
from cosine_lab.simulation.faults import parse_spec
from cosine_lab.simulation.traces import EOS
from tests.lab.experiments.quick import quick_result

LONG = LongPrompts(count=5, tokens=200, longest_tokens=200)
LENGTHS = LiarsOptions.quick().lengths_tokens


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("liars")


@pytest.mark.parametrize("spec", LIES.values())
def test_every_lie_is_one_that_the_simulation_knows(spec: str) -> None:
    parse_spec(spec)


def test_long_requests_stay_in_their_domain_and_do_not_end_early() -> None:
    for trace in LONG.traces(0.0):
        assert len(trace.stream) == 200
        assert "+" not in trace.domain
        assert set(trace.stream[:-1]).isdisjoint(EOS)


def test_a_shorter_cell_asks_for_the_beginning_of_the_same_requests() -> None:
    shorter = replace(LONG, tokens=4).traces(0.0)
    assert [trace.stream for trace in shorter] == [trace.stream[:4] for trace in LONG.traces(0.0)]
    assert [trace.prompt() for trace in shorter] == [trace.prompt() for trace in LONG.traces(0.0)]


@pytest.mark.thorough
def test_every_liar_is_compared_with_the_swarm_without_it(result: dict[str, Any]) -> None:
    assert [row["added"] for row in result["rows"]] == [added for added in LIES if added != NOBODY] * len(LENGTHS)
    for row in result["rows"]:
        expected = 100 * (row["seconds"] / row["seconds_without"] - 1)
        assert row["cost_percent"] == pytest.approx(expected)
        assert row["worst_request_percent"] >= row["cost_percent"]
        assert ("late_cost_percent" in row) == (row["tokens_per_request"] == max(LENGTHS))


@pytest.mark.thorough
def test_whatever_is_said_the_text_is_the_target_s(result: dict[str, Any]) -> None:
    assert result["findings"]["mismatches"] == 0
    assert result["findings"]["violations"] == 0
    assert len({row["tokens"] for row in result["rows"]}) == len(LENGTHS)
