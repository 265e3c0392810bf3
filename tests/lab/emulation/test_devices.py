"""Emulated devices follow their data sheets: a roofline, memory that ends, and published figures within reach."""

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

LLAMA_2_7B = ModelClass(parameters=6.74e9, layers=32, width=4096, key_width=4096)


def costs(device: str, model: str, **load: int) -> list[float]:
    curve = deploy(device, model, load=PassLoad(**load), precision=Precision.INT4).curve()
    assert tuple(tokens for tokens, _ in curve.points) == CURVE_TOKENS
    return [seconds for _, seconds in curve.points]


fitting = st.sampled_from(
    [("laptop-cpu", "1B"), ("rtx-3060", "8B"), ("rtx-3090", "32B"), ("a100-80gb", "70B"), ("h200", "0.5B")]
)


@given(fitting, st.integers(0, 2048), st.integers(1, 4))
def test_curves_rise_with_tokens_context_and_sequences(
    names: tuple[str, str], context_tokens: int, sequences: int
) -> None:
    found = costs(*names, context_tokens=context_tokens, sequences=sequences)
    longer = costs(*names, context_tokens=context_tokens + 256, sequences=sequences)
    fuller = costs(*names, context_tokens=context_tokens, sequences=sequences + 1)
    assert found[0] > 0 and found == sorted(found)
    assert all(cost <= min(more) for cost, *more in zip(found, longer, fuller, strict=True))


@pytest.mark.parametrize(
    ("device", "model", "precision", "count", "published"),
    [
        ("rtx-3090", MODELS["8B"], Precision.BF16, 1, 46.51),
        ("rtx-3090", MODELS["8B"], Precision.INT4, 1, 111.74),
        ("rtx-4090", MODELS["8B"], Precision.INT4, 1, 127.74),
        ("a100-80gb", MODELS["70B"], Precision.INT4, 1, 24.33),
        ("a100-80gb", LLAMA_2_7B, Precision.BF16, 1, 104.9),
        ("a100-80gb", LLAMA_2_7B, Precision.INT8, 1, 155.58),
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
