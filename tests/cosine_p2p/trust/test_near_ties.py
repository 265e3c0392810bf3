"""The margin of a near-tie is that of the data type, and grows where a temperature spreads scores."""

import pytest

from cosine_p2p.trust.audit_rule import LLAMA_NEAR_TIES, NEAR_TIES, is_near_tie, near_tie_of
from cosine_protocol.request import Sampling


@pytest.mark.parametrize(
    ("numerics", "dtype"),
    [
        ("float32", "float32"),
        ("bfloat16/int8", "bfloat16"),
        ("float16", "float16"),
        ("scripted", "float32"),
        ("gguf:Q4_1+bfloat16/int8", "bfloat16"),
    ],
)
def test_quantised_weights_are_computed_with_in_their_data_type(numerics: str, dtype: str) -> None:
    assert near_tie_of(numerics) == NEAR_TIES[dtype]


@pytest.mark.parametrize(
    ("weights", "near_tie"), [("F32", LLAMA_NEAR_TIES["F32"]), ("F16", 0.02), ("Q8_0", 0.3), ("Q4_K", 1.0)]
)
def test_llama_rounds_activations_too_where_weights_have_few_bits(weights: str, near_tie: float) -> None:
    assert near_tie_of(f"gguf:{weights}+llama.cpp") == near_tie
    # Dequantised weights are computed with in the data type.
    assert near_tie_of(f"gguf:{weights}+float32") == NEAR_TIES["float32"]


@pytest.mark.parametrize(("temperature", "largest"), [(0.0, 0.1), (0.5, 0.2), (1.0, 0.1), (2.0, 0.1)])
def test_a_low_temperature_spreads_scores_and_their_errors(temperature: float, largest: float) -> None:
    sampling = Sampling(temperature=temperature)
    assert is_near_tie(largest * 0.99, sampling=sampling, near_tie=0.1)
    assert not is_near_tie(largest, sampling=sampling, near_tie=0.1)
