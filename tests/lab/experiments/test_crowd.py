"""The crowd in its smallest form: the same machines for everybody, bounds that follow from the cost curve."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.crowd import (
    CROWD_DRAFTERS,
    LATENCY,
    RIVALS,
    SATURATED,
    SPEEDS,
    TOLD_ORACLE,
    VERIFIERS,
    CrowdOptions,
    Setting,
    cell_of,
    choices_of,
    figures_of,
)
from cosine_lab.experiments.entrants import ENTRANTS
from cosine_lab.experiments.experiment import run_cell
from tests.lab.experiments.quick import quick_result

OPTIONS = replace(CrowdOptions.quick(), tokens=4)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("crowd")


def test_there_is_a_drafter_of_each_kind_and_none_is_as_fast_as_all_others() -> None:
    assert len(CROWD_DRAFTERS) == len(SPEEDS) == 8
    assert len(set(CROWD_DRAFTERS)) == 7
    assert len(set(SPEEDS)) > 3


@pytest.mark.parametrize("strategy", RIVALS)
def test_every_choice_of_a_rival_can_be_run(strategy: str) -> None:
    assert strategy in ENTRANTS
    sampled = Setting(load=LATENCY, profile="60/6", temperature=0.8)
    for choice in choices_of(strategy, 0.8)[:1] + choices_of(strategy, 0.8)[-1:]:
        found = run_cell(cell_of(OPTIONS, sampled, strategy, choice))
        assert found.checks == {"tokens": 8, "mismatches": 0, "violations": 0}


@pytest.mark.thorough
def test_everybody_has_the_same_requests(result: dict[str, Any]) -> None:
    for load, clients in ((LATENCY, 2), (SATURATED, 3)):
        rows = [row for row in result["rows"] if row["load"] == load]
        assert [row["strategy"] for row in rows] == ["plain", "cosine", "spin", "oracle", TOLD_ORACLE]
        assert {row["clients"] for row in rows} == {row["requests"] for row in rows} == {clients}
        assert len({row["tokens"] for row in rows}) == 1
        assert all(row["mismatches"] == row["violations"] == 0 for row in rows)
        assert all(row["token_p50_ms"] <= row["token_p95_ms"] for row in rows)
        assert all(sum(row["verifier_shares"]) == pytest.approx(1.0) for row in rows)


@pytest.mark.thorough
def test_what_is_found_follows_from_the_rows(result: dict[str, Any]) -> None:
    found = result["findings"]["settings"][0]
    own = {row["strategy"]: row for row in result["rows"] if row["load"] == LATENCY}
    best = max(own[name]["tokens_per_s"] for name in ("plain", "spin"))
    assert found["throughput_ratio"] == pytest.approx(own["cosine"]["tokens_per_s"] / best)


@pytest.mark.thorough
def test_no_strategy_outruns_the_bound_of_verifiers_that_never_idle(result: dict[str, Any]) -> None:
    for found in result["findings"]["settings"]:
        bounds = [bound["tokens_per_s"] for bound in found["bounds"].values()]
        assert bounds == sorted(bounds)
        rows = [row for row in result["rows"] if row["load"] == found["load"]]
        assert all(row["tokens_per_s"] < bounds[-1] for row in rows)


def test_clients_spread_over_the_verifiers_and_a_cell_repeats_itself() -> None:
    setting = Setting(load=LATENCY, profile="60/6", temperature=0.0)
    cell = cell_of(replace(OPTIONS, clients=16, tokens=2), setting, "cosine", {})
    found = run_cell(cell)
    shares = figures_of(found, seed=0)["verifier_shares"]
    assert len(shares) == VERIFIERS
    assert min(shares) > 0.2
    assert run_cell(cell).report.digest == found.report.digest
