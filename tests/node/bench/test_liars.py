"""The experiment on liars: who is added, how long the requests are, and its smallest form."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_node.bench.liars import LIES, NOBODY, LiarCell, LiarsOptions, long_requests, run, run_liar_cell
from cosine_node.simulation.faults import parse_spec
from cosine_node.simulation.traces import EOS

SMALL = replace(LiarsOptions.quick(), processes=1)
CELL = LiarCell(
    added=NOBODY,
    tokens=8,
    longest_tokens=200,
    temperature=0.0,
    split="test",
    prompts=5,
    profile="60/6",
    rtt_ms=20.0,
    seed=0,
)


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(SMALL, say=silent)


@pytest.mark.parametrize("spec", LIES.values())
def test_every_lie_is_one_that_the_simulation_knows(spec: str) -> None:
    parse_spec(spec)


def test_long_requests_stay_in_their_domain_and_do_not_end_early() -> None:
    for trace in long_requests(CELL):
        assert len(trace.stream) == 200
        assert "+" not in trace.domain
        assert set(trace.stream[:-1]).isdisjoint(EOS)


def test_a_shorter_cell_asks_for_the_beginning_of_the_same_requests() -> None:
    shorter = long_requests(replace(CELL, tokens=4))
    assert [trace.stream for trace in shorter] == [trace.stream for trace in long_requests(CELL)]


def test_every_liar_is_compared_with_the_swarm_without_it(result: dict[str, Any]) -> None:
    lengths = len(SMALL.lengths_tokens)
    assert [row["added"] for row in result["rows"]] == [added for added in LIES if added != NOBODY] * lengths
    for row in result["rows"]:
        expected = 100 * (row["seconds"] / row["seconds_without"] - 1)
        assert row["cost_percent"] == pytest.approx(expected)
        assert row["worst_request_percent"] >= row["cost_percent"]
        assert ("late_cost_percent" in row) == (row["tokens_per_request"] == max(SMALL.lengths_tokens))


def test_whatever_is_said_the_text_is_the_target_s(result: dict[str, Any]) -> None:
    assert result["findings"]["mismatches"] == 0
    assert result["findings"]["violations"] == 0
    assert len({row["tokens"] for row in result["rows"]}) == len(SMALL.lengths_tokens)


def test_the_same_options_give_the_same_result() -> None:
    cell = replace(CELL, added="certain of random tokens", prompts=1)
    assert run_liar_cell(cell) == run_liar_cell(cell)
