"""Each role on a core of its own: which cores, which ways, and what rows by kind show."""

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.here_cores import (
    findings_of,
    options_on_cores,
    run_on_cores,
)
from cosine_node import zoo
from cosine_node.demo.machine import Cores
from cosine_node.demo.swarm import Cast
from tests.lab.experiments.quick import silent


def row(kind: str, ratio: float, *, temperature: float = 0.0, is_identical: bool = True) -> dict[str, Any]:
    times = {"plain": 1.0, "copying": 1.0, "cosine": ratio}
    return {
        "kind": kind,
        "temperature": temperature,
        "ms_per_token": {way: 60 / times_plain for way, times_plain in times.items()},
        "times_plain": times,
        "tokens_by_origin": {
            "plain": {"target alone": 8},
            "copying": {"target alone": 6, "copied": 2},
            "cosine": {"target alone": 4, "code": 4},
        },
        "is_identical": is_identical,
        "near_ties": 1,
    }


def test_the_speed_is_told_over_all_questions_and_by_kind() -> None:
    rows = [row("chat", 2.0), row("coding", 0.9, is_identical=False), row("chat", 3.0), row("coding", 0.8)]
    found = findings_of(rows, 0)
    copying, cosine = found["ways"]
    assert (copying["way"], copying["times_plain"]) == ("copying", 1.0)
    assert (cosine["times_plain"], cosine["least"], cosine["slower_than_plain"]) == (1.45, 0.8, 2)
    assert cosine["interval"][0] <= 1.45 <= cosine["interval"][1]
    assert found["kinds"] == [
        {"kind": "chat", "copying, T 0": 1.0, "cosine, T 0": 2.5},
        {"kind": "coding", "copying, T 0": 1.0, "cosine, T 0": pytest.approx(0.85)},
    ]
    assert (found["mismatches"], found["near_ties"], found["compared"]) == (1, 4, 4)
    assert found["not_sooner"] == ("copying at T 0: chat (1.00), coding (1.00); cosine at T 0: coding (0.85)")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_family_is_started_on_its_cores_and_measured() -> None:
    """Both cores may be the same one: what is measured then means nothing, but it is measured."""
    core = min(os.sched_getaffinity(0))
    cast = Cast(zoo.Family.TOY, None, verifier_options=("--threads", "1"), own_drafters=("zoo:draft-code",))
    options = replace(options_on_cores(quick=True), target=cast.target, prompts=2, tokens=8)
    result = asyncio.run(run_on_cores(cast, "zoo:draft-general", Cores(core, core), options, rows=[], say=silent))
    assert [row["temperature"] for row in result["rows"]] == [0.0, 0.8, 0.0, 0.8]
    assert all(len(row["ms_per_token"]) == 5 and row["is_identical"] for row in result["rows"])
    assert len(result["setup"]["verifiers"]) == 2
    assert result["setup"]["home_drafter"] == "zoo:draft-general"
