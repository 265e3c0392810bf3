"""Emulated devices follow their data sheets: a roofline, memory that ends, and published figures within reach."""

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


def test_the_best_precision_that_fits_is_chosen() -> None:
    assert deploy("h200", "32B").precision is Precision.BF16
    assert deploy("rtx-3060", "8B").precision is Precision.INT8
    assert deploy("rtx-3090", "32B").precision is Precision.INT4
    assert deploy("rtx-3060", "8B", precision=Precision.INT4).precision is Precision.INT4


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
