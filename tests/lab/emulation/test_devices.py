"""Emulated devices follow their data sheets: a roofline, memory that ends, and published figures within reach."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.devices import (
    CURVE_TOKENS,
    DEVICES,
    MODELS,
    Deployment,
    ModelClass,
    PassLoad,
    Precision,
    deploy,
)
from cosine_node.engine.curve import CostCurve
from cosine_protocol.errors import UsageError

LLAMA_2_7B = ModelClass(parameters=6.74e9, layers=32, width=4096, key_width=4096)


def device_curve(
    device: str,
    model: str,
    context_tokens: int = 1024,
    *,
    sequences: int = 1,
    count: int = 1,
    precision: Precision | None = None,
) -> CostCurve:
    load = PassLoad(context_tokens=context_tokens, sequences=sequences)
    return deploy(device, model, load=load, count=count, precision=precision).curve()


fitting = st.sampled_from(
    [("laptop-cpu", "1B"), ("rtx-3060", "8B"), ("rtx-3090", "32B"), ("a100-80gb", "70B"), ("h200", "0.5B")]
)


@given(fitting, st.integers(0, 2048), st.integers(1, 4))
def test_curves_rise_with_tokens_context_and_sequences(
    names: tuple[str, str], context_tokens: int, sequences: int
) -> None:
    curve = device_curve(*names, context_tokens, sequences=sequences, precision=Precision.INT4)
    assert tuple(tokens for tokens, _ in curve.points) == CURVE_TOKENS
    assert curve.points[0][1] > 0
    assert all(before <= after for (_, before), (_, after) in pairwise(curve.points))
    longer = device_curve(*names, context_tokens + 256, sequences=sequences, precision=Precision.INT4)
    fuller = device_curve(*names, context_tokens, sequences=sequences + 1, precision=Precision.INT4)
    for (_, cost), (_, longer_cost), (_, fuller_cost) in zip(
        curve.points, longer.points, fuller.points, strict=True
    ):
        assert cost <= longer_cost
        assert cost <= fuller_cost


@given(fitting, st.floats(1, 8), st.sampled_from(CURVE_TOKENS))
def test_more_bandwidth_or_speed_never_costs_more(names: tuple[str, str], factor: float, tokens: int) -> None:
    before = deploy(*names)
    bandwidth = replace(before.device, bandwidth_bytes_per_s=factor * before.device.bandwidth_bytes_per_s)
    speed = replace(before.device, operations_per_s=factor * before.device.operations_per_s)
    for device in (bandwidth, speed):
        assert replace(before, device=device).seconds(tokens) <= before.seconds(tokens)


def test_few_tokens_wait_for_the_memory_and_many_for_the_arithmetic() -> None:
    curve = device_curve("rtx-3090", "8B")
    assert curve.seconds(8) == curve.seconds(1)
    assert curve.seconds(512) / curve.seconds(256) == pytest.approx(2, rel=0.02)


def test_the_best_precision_that_fits_is_chosen() -> None:
    assert deploy("h200", "32B").precision is Precision.BF16
    assert deploy("rtx-3060", "8B").precision is Precision.INT8
    assert deploy("rtx-3090", "32B").precision is Precision.INT4
    assert deploy("rtx-3060", "8B", precision=Precision.INT4).precision is Precision.INT4


def test_every_name_says_that_it_is_emulated() -> None:
    assert deploy("rtx-3090", "70B", count=2).name == "emulated 2 x rtx-3090, 70B int4"


@pytest.mark.parametrize("device", ["laptop-cpu", "rtx-3060", "rtx-3090", "rtx-4090"])
def test_a_70b_model_does_not_fit_one_small_card(device: str) -> None:
    with pytest.raises(UsageError, match=f"1 x {device}, 70B int4 does not fit: it needs 43.1 GB"):
        device_curve(device, "70B")


def test_what_fits_by_itself_may_not_fit_with_its_context_or_at_a_named_precision() -> None:
    deploy("rtx-3090", "32B")
    with pytest.raises(UsageError, match="does not fit"):
        deploy("rtx-3090", "32B", load=PassLoad(context_tokens=32768))
    with pytest.raises(UsageError, match="bf16 does not fit"):
        deploy("rtx-3090", "32B", precision=Precision.BF16)


@given(st.sampled_from(["rtx-3090", "a100-80gb", "h200"]), st.integers(1, 7))
def test_more_cards_are_faster_for_one_token_and_less_than_proportionally(device: str, count: int) -> None:
    one, more = (deploy(device, "32B", count=n, precision=Precision.INT4).seconds(1) for n in (count, count + 1))
    assert one * count / (count + 1) < more < one


def test_cards_without_a_fast_link_lose_more_by_working_together() -> None:
    def gain(device: str) -> float:
        one, two = (device_curve(device, "8B", count=n, precision=Precision.INT4).seconds(512) for n in (1, 2))
        return one / two

    assert 1 < gain("rtx-4090") < gain("a100-80gb") < 2


@pytest.mark.parametrize(
    ("device", "model", "precision", "count", "published"),
    [
        ("rtx-3090", MODELS["8B"], Precision.BF16, 1, 46.51),
        ("rtx-3090", MODELS["8B"], Precision.INT4, 1, 111.74),
        ("rtx-4090", MODELS["8B"], Precision.BF16, 1, 54.34),
        ("rtx-4090", MODELS["8B"], Precision.INT4, 1, 127.74),
        ("a100-80gb", MODELS["70B"], Precision.INT4, 1, 24.33),
        ("a100-80gb", LLAMA_2_7B, Precision.BF16, 1, 104.9),
        ("a100-80gb", LLAMA_2_7B, Precision.INT8, 1, 155.58),
        ("a100-80gb", LLAMA_2_7B, Precision.INT4, 1, 196.8),
        ("a100-80gb", LLAMA_2_7B, Precision.BF16, 2, 168.84),
        ("a100-80gb", LLAMA_2_7B, Precision.BF16, 8, 328.43),
    ],
)
def test_published_tokens_per_second_are_met_within_a_fifth(
    device: str, model: ModelClass, precision: Precision, count: int, published: float
) -> None:
    deployment = Deployment(
        name="emulated",
        device=DEVICES[device],
        model=model,
        precision=precision,
        count=count,
        load=PassLoad(context_tokens=100 if model is LLAMA_2_7B else 512),
    )
    assert 1 / deployment.seconds(1) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("device", "model", "sentence"),
    [("gpu", "8B", "There is no device 'gpu'; choose from laptop-cpu"), ("h200", "9B", "no model '9B'; choose")],
)
def test_unknown_names_are_told(device: str, model: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        device_curve(device, model)


def test_loads_and_counts_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="at least one sequence"):
        PassLoad(sequences=0)
    with pytest.raises(UsageError, match="no context below 0"):
        PassLoad(context_tokens=-1)
    with pytest.raises(UsageError, match="at least one card"):
        deploy("h200", "8B", count=0)
