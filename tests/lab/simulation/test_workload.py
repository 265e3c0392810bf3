"""What a scenario's workload hands out."""

import pytest

from cosine_lab.simulation.scenario import EngineSource, Scenario
from cosine_lab.simulation.workload import LOOKUP, workload_of


@pytest.mark.parametrize("source", [EngineSource.TRACES, EngineSource.MODELS])
def test_an_expert_in_lookup_needs_no_model(source: EngineSource) -> None:
    workload = workload_of(Scenario(source=source, domains=("code", LOOKUP)))
    assert [workload.drafter(index).numerics for index in range(2)] == ["float32", "none"]
    assert workload.drafter(1).vocab_tokens == workload.vocab_tokens


def test_what_is_asked_may_be_of_a_domain_that_no_drafter_has() -> None:
    workload = workload_of(
        Scenario(source=EngineSource.LEARNING, domains=("code", "math"), prompt_domains=("literature",))
    )
    assert {workload.task(number).domain for number in range(4)} == {"literature"}


def test_a_drafter_that_was_recorded_while_it_learned_becomes_another() -> None:
    workload = workload_of(Scenario(source=EngineSource.LEARNING, domains=("code", "math", LOOKUP)))
    found = [workload.learning(index) for index in range(3)]
    assert [one.domain if one else None for one in found] == [None, "math", None]
    assert workload_of(Scenario(source=EngineSource.TRACES)).learning(1) is None


@pytest.mark.parametrize("source", [EngineSource.TRACES, EngineSource.MODELS])
def test_nobody_asks_for_lookup(source: EngineSource) -> None:
    workload = workload_of(Scenario(source=source, domains=("code", LOOKUP, "math"), max_new_tokens=2))
    assert [workload.task(number).domain for number in range(4)] == ["code", "math"] * 2
