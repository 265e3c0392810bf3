"""Emulated devices follow their data sheets: a roofline, memory that ends, and published figures within reach."""

import pytest

from cosine_lab.emulation.devices import DEVICES, MODELS, Deployment, ModelClass, Precision, deploy
from cosine_protocol.errors import UsageError

LLAMA_2_7B = ModelClass(parameters=6.74e9, layers=32, width=4096, key_width=4096)


def deployed(device: str, model: ModelClass, precision: Precision, context_tokens: int) -> Deployment:
    return Deployment(
        name="emulated",
        device=DEVICES[device],
        model=model,
        precision=precision,
        context_tokens=context_tokens,
    )


def test_the_best_precision_that_fits_is_chosen() -> None:
    assert deploy("a100-80gb", "8B").precision is Precision.BF16
    assert deploy("a100-80gb", "70B").precision is Precision.INT8
    assert deploy("rtx-3090", "32B").precision is Precision.INT4
    with pytest.raises(UsageError, match="does not fit: it needs"):
        deploy("rtx-3060", "70B")


@pytest.mark.parametrize(
    ("device", "model", "precision", "published"),
    [
        ("rtx-3090", MODELS["8B"], Precision.BF16, 46.51),
        ("rtx-3090", MODELS["8B"], Precision.INT4, 111.74),
        ("rtx-4090", MODELS["8B"], Precision.INT4, 127.74),
        ("a100-80gb", MODELS["70B"], Precision.INT4, 24.33),
        ("a100-80gb", LLAMA_2_7B, Precision.BF16, 104.9),
        ("a100-80gb", LLAMA_2_7B, Precision.INT8, 155.58),
    ],
)
def test_published_speeds_are_met_within_a_fifth(
    device: str, model: ModelClass, precision: Precision, published: float
) -> None:
    context_tokens = 100 if model is LLAMA_2_7B else 512
    assert 1 / deployed(device, model, precision, context_tokens).seconds(1) == pytest.approx(published, rel=0.2)
