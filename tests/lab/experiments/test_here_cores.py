"""Each role on its own core: the cores, the ways, and the findings of rows by kind."""

import asyncio
import os
from dataclasses import replace

import pytest

from cosine_engine import zoo
from cosine_lab.emulation.cores import Cores
from cosine_lab.experiments.here_cores import options_on_cores, run_on_cores
from cosine_lab.experiments.kinds import EXPERTS, questions_of
from cosine_node.demo.swarm import Cast


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_family_is_started_on_its_cores_and_measured() -> None:
    """Both cores may be the same one, for a measurement without meaning."""
    core = min(os.sched_getaffinity(0))
    cast = Cast(zoo.Family.TOY, None, verifier_options=("--threads", "1"), own_drafters=("zoo:draft-code",))
    options = replace(options_on_cores(quick=True), target=cast.target, prompts=2, tokens=8)
    result = asyncio.run(
        run_on_cores(cast, "zoo:draft-general", Cores(core, core), options, rows=[], say=lambda _: None)
    )
    assert [row["temperature"] for row in result["rows"]] == [0.0, 0.8, 0.0, 0.8]
    assert all(len(row["ms_per_token"]) == 5 and row["is_identical"] for row in result["rows"])
    assert len(result["setup"]["verifiers"]) == 2
    assert result["setup"]["home_drafter"] == "zoo:draft-general"


def test_no_question_is_learned_from() -> None:
    assert all(one.is_held_out for one in questions_of(zoo.Family.SMOL) if one.domain != EXPERTS)
