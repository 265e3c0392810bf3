"""Counters are sums of what generations report."""

import pytest
from prometheus_client import CollectorRegistry

from cosine_node.metrics import GenerationMetrics
from tests.node.gateway.generations import DONE, generation

MODEL = "m"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"cosine:{name}", {"model_name": MODEL, **labels})


def test_generations_are_added_up() -> None:
    registry = CollectorRegistry()
    metrics = GenerationMetrics(registry, model_name=MODEL)
    metrics.observe(DONE)
    metrics.observe(generation(finish_reason="stop", seconds=4.5))
    metrics.observe(generation(finish_reason="length"))
    for name, total in (
        ("prompt_tokens_total", 15),
        ("generation_tokens_total", 63),
        ("spec_decode_num_draft_tokens_total", 120),
        ("spec_decode_num_accepted_tokens_total", 48),
        ("spec_decode_num_rounds_total", 15),
        ("time_to_first_token_seconds_sum", 1.5),
        ("e2e_request_latency_seconds_sum", 9.5),
        ("time_per_output_token_seconds_count", 3),
        ("time_per_output_token_seconds_sum", 0.4),
    ):
        assert value(registry, name) == pytest.approx(total), name
    reasons = [value(registry, "request_success_total", finished_reason=reason) for reason in ("stop", "length")]
    assert reasons == [2, 1]


def test_what_was_abandoned_counts_as_work_but_has_no_latency() -> None:
    registry = CollectorRegistry()
    GenerationMetrics(registry, model_name=MODEL).observe_abandoned(generation(tokens=3))
    assert value(registry, "generation_tokens_total") == 3
    assert value(registry, "request_success_total", finished_reason="abort") == 1
    assert value(registry, "e2e_request_latency_seconds_count") is None


def test_short_outputs_have_no_time_per_further_token() -> None:
    registry = CollectorRegistry()
    metrics = GenerationMetrics(registry, model_name=MODEL)
    metrics.observe(generation(tokens=1))
    metrics.observe(generation(tokens=0))
    assert value(registry, "time_to_first_token_seconds_count") == 1
    assert value(registry, "time_per_output_token_seconds_count") is None
    assert value(registry, "e2e_request_latency_seconds_count") == 2
