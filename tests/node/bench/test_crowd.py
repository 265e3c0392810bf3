"""The crowd in its smallest form: the same machines for everybody, bounds that follow from the cost curve."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_node.bench.crowd import LATENCY, RIVALS, SATURATED, CrowdOptions, choices_of, run
from cosine_node.bench.crowd_bounds import best_pass, told
from cosine_node.bench.crowd_cells import EXPERTS, SPEEDS, VERIFIERS, CrowdCell, run_crowd, share_of
from cosine_node.bench.entrants import ENTRANTS
from cosine_node.engine.curve import CostCurve

SMALL = replace(CrowdOptions.quick(), processes=1)
CURVE = CostCurve(((1, 0.1), (8, 0.1), (16, 0.2)))
CELL = CrowdCell(strategy="cosine", clients=2, requests=1, tokens=6)


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(SMALL, say=silent)


def test_there_is_a_drafter_of_each_kind_and_none_is_as_fast_as_all_others() -> None:
    assert len(EXPERTS) == len(SPEEDS) == 8
    assert len(set(EXPERTS)) == 7
    assert len(set(SPEEDS)) > 3


@pytest.mark.parametrize("strategy", RIVALS)
def test_every_choice_of_a_rival_can_be_run(strategy: str) -> None:
    assert strategy in ENTRANTS
    for choice in choices_of(strategy, 0.8)[:1] + choices_of(strategy, 0.8)[-1:]:
        found = run_crowd(
            CrowdCell(strategy=strategy, choice=choice, clients=2, requests=1, tokens=4, temperature=0.8)
        )
        assert (found.mismatches, found.violations) == (0, ())
        assert len(found.request_s) == 2


def test_everybody_has_the_same_requests(result: dict[str, Any]) -> None:
    for load, clients in ((LATENCY, 2), (SATURATED, 3)):
        rows = [row for row in result["rows"] if row["load"] == load]
        assert [row["strategy"] for row in rows] == ["plain", "cosine", "spin", "oracle", "oracle, drafters told"]
        assert {row["clients"] for row in rows} == {row["requests"] for row in rows} == {clients}
        assert len({row["tokens"] for row in rows}) == 1
        assert all(row["mismatches"] == row["violations"] == 0 for row in rows)
        assert all(row["token_p50_ms"] <= row["token_p95_ms"] for row in rows)
        assert all(sum(row["verifier_shares"]) == pytest.approx(1.0) for row in rows)


def test_what_is_found_follows_from_the_rows(result: dict[str, Any]) -> None:
    found = result["findings"]["settings"][0]
    own = {row["strategy"]: row for row in result["rows"] if row["load"] == LATENCY}
    best = max(own[name]["tokens_per_s"] for name in ("plain", "spin"))
    assert found["throughput_ratio"] == pytest.approx(own["cosine"]["tokens_per_s"] / best)
    bounds = [
        found["bounds"][name]["tokens_per_s"] for name in ("no_drafts", "measured_acceptance", "always_right")
    ]
    assert bounds == sorted(bounds)


def test_no_strategy_outruns_the_bound_of_verifiers_that_never_idle(result: dict[str, Any]) -> None:
    for found in result["findings"]["settings"]:
        told_tokens_per_s = found["bounds"]["always_right"]["tokens_per_s"]
        rows = [row for row in result["rows"] if row["load"] == found["load"]]
        assert all(row["tokens_per_s"] < told_tokens_per_s for row in rows)


def test_clients_spread_over_the_verifiers() -> None:
    shares = run_crowd(replace(CELL, clients=16, tokens=2)).verifier_shares
    assert len(shares) == VERIFIERS
    assert min(shares) > 0.2


def test_the_same_cell_gives_the_same_result() -> None:
    assert run_crowd(CELL) == run_crowd(CELL)
    assert run_crowd(CELL).digest != run_crowd(replace(CELL, seed=1, rtt_ms=30.0)).digest


def test_a_share_of_the_latencies_does_not_exceed_it() -> None:
    latencies = (4.0, 1.0, 3.0, 2.0)
    assert (share_of(latencies, 0.5), share_of(latencies, 0.95), share_of(latencies, 0.0)) == (2.0, 4.0, 1.0)


def test_the_best_pass_fills_what_is_free_and_weighs_what_is_not() -> None:
    gains = {0: 0.0, 1: 0.6, 3: 1.2, 7: 1.5}
    assert best_pass(CURVE, requests=2, gains=gains, budget_tokens=64).nodes == 3
    assert best_pass(CURVE, requests=8, gains=gains, budget_tokens=64).nodes == 0
    assert best_pass(CURVE, requests=2, gains=gains, budget_tokens=4).nodes == 1


def test_always_right_drafts_fill_the_budget() -> None:
    flat = CostCurve(((1, 0.1), (8, 0.1), (16, 0.15)))
    bound = best_pass(flat, requests=2, gains=told((0, 1, 3, 7)), budget_tokens=16)
    assert (bound.nodes, bound.tokens) == (7, 16.0)
    assert bound.tokens_per_s == pytest.approx(16.0 / 0.15)
