"""The routing experiment in its smallest form."""

from typing import Any

import pytest

from cosine_node.bench.routers import RoutingOptions, run
from cosine_node.bench.routing import ENTRANTS, SCENARIOS


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(RoutingOptions.quick(), say=silent)


def test_every_router_is_on_every_kind_of_traffic(result: dict[str, Any]) -> None:
    assert [row["router"] for row in result["rows"]] == [entrant.name for _ in SCENARIOS for entrant in ENTRANTS]


def test_the_findings_compare_with_the_best_rival_of_each_kind(result: dict[str, Any]) -> None:
    accepted = {
        (row["scenario"], row["router"], row["active"]): row["accepted_per_round"] for row in result["rows"]
    }
    for entry in result["findings"]["against_rivals"]:
        ours = accepted[entry["scenario"], "hedge", 3]
        names = ("cosine-score", "goodput-bandit", "ucb", "uniform", "generalist")
        best = max(value for key, value in accepted.items() if key[0] == entry["scenario"] and key[1] in names)
        assert entry["ratio_to_best_rival"] == pytest.approx(ours / best)


def test_the_same_options_give_the_same_result(result: dict[str, Any]) -> None:
    assert run(RoutingOptions.quick(), say=silent) == result
