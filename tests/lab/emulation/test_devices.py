"""Emulated devices follow their data sheets: a roofline, memory that ends, and published figures within reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.devices import CURVE_TOKENS, DEVICES, MODELS, Deployment, ModelClass, Precision, deploy
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


fitting = st.sampled_from(
    [("laptop-cpu", "1B"), ("rtx-3060", "8B"), ("rtx-3090", "32B"), ("a100-80gb", "70B"), ("h200", "0.5B")]
)


@given(fitting, st.integers(0, 2048))
def test_curves_rise_with_tokens_and_context(names: tuple[str, str], context_tokens: int) -> None:
    def costs(context_tokens: int) -> list[float]:
        curve = deployed(names[0], MODELS[names[1]], Precision.INT4, context_tokens).curve()
        assert tuple(tokens for tokens, _ in curve.points) == CURVE_TOKENS
        return [seconds for _, seconds in curve.points]

    found, longer = costs(context_tokens), costs(context_tokens + 256)
    assert found[0] > 0 and found == sorted(found)
    assert all(cost <= more for cost, more in zip(found, longer, strict=True))


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
def test_published_tokens_per_second_are_met_within_a_fifth(
    device: str, model: ModelClass, precision: Precision, published: float
) -> None:
    context_tokens = 100 if model is LLAMA_2_7B else 512
    assert 1 / deployed(device, model, precision, context_tokens).seconds(1) == pytest.approx(published, rel=0.2)
