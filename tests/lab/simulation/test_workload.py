"""What a scenario's workload hands out."""

import pytest

from cosine_lab.simulation.scenario import EngineSource, Scenario
from cosine_lab.simulation.workload import LOOKUP, workload_of


@pytest.mark.parametrize("source", [EngineSource.TRACES, EngineSource.MODELS])
def test_an_expert_in_lookup_needs_no_model(source: EngineSource) -> None:
    workload = workload_of(Scenario(source=source, domains=("code", LOOKUP)))
    assert [workload.drafter(index).numerics for index in range(2)] == ["float32", "none"]
    assert workload.drafter(1).vocab_tokens == workload.vocab_tokens


@pytest.mark.parametrize("source", [EngineSource.TRACES, EngineSource.MODELS])
def test_nobody_asks_for_lookup(source: EngineSource) -> None:
    workload = workload_of(Scenario(source=source, domains=("code", LOOKUP, "math"), max_new_tokens=2))
    assert [workload.task(number).domain for number in range(4)] == ["code", "math"] * 2
