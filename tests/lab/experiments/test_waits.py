"""The experiment on where the time of texts over a ring goes, in its smallest form."""

from typing import Any

import pytest

from cosine_lab.experiments.token_waits import Wait
from cosine_lab.experiments.waits import WITHOUT
from tests.lab.experiments.quick import quick_result


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("waits")


def test_what_texts_waited_for_is_all_that_they_took(result: dict[str, Any]) -> None:
    told = result["findings"]["ms_per_token"]
    assert [entry["way"] for entry in told] == list(WITHOUT)
    rows = {row["way"]: row for row in result["rows"]}
    for entry in told:
        waited_ms = sum(entry[wait.value] for wait in Wait)
        assert waited_ms == pytest.approx(1e3 / rows[entry["way"]]["tokens_per_s"], rel=1e-3)


def test_nothing_is_faster_than_the_ceiling_without_hindsight(result: dict[str, Any]) -> None:
    [ceiling] = result["findings"]["ceilings"]
    rows = {row["way"]: row for row in result["rows"]}
    assert rows["plain"]["speedup"] <= rows["cosine"]["speedup"] <= ceiling["times_plain"]
    assert ceiling["times_plain"] <= ceiling["luckiest_times_plain"]
