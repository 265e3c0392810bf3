"""In deterministic mode a request gives the same bits whatever happens around it; without it, it need not."""

from typing import Any

import pytest
import torch

from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.invariance_self_test import find_row_tiles
from tests.node.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.node.engine.tiny_models import ARCHITECTURES, LATENT, VOCAB, WINDOWED, build
from tests.thoroughness import THOROUGH

POOL_TOKENS = 4096


def sixteen_bit(config: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    return build(config).to(dtype)


def differences(model: Any, *, is_deterministic: bool, requests: int, tokens: int, longest: int = 60) -> int:
    """How many requests come out otherwise together than alone."""
    tiles = find_row_tiles(model) if is_deterministic else None
    engine = TorchEngine(model, pool_tokens=POOL_TOKENS, tiles=tiles)
    asked = draw_requests(requests, vocab_tokens=VOCAB, longest=longest, seed=1)
    for one in asked:
        one.expected = serve_alone(engine, one, tokens)
    return serve_together(engine, asked, at_once=7, seed=2)


LLAMA = pytest.param(ARCHITECTURES["Llama"], id="Llama")
MIXTRAL = pytest.param(ARCHITECTURES["Mixtral"], id="Mixtral")
# Finding the row tiles takes nearly all of the time of a case, whatever is asked: one model for each mechanism.
CASES = [
    pytest.param(WINDOWED["Mistral"], id="Mistral with a window"),
    pytest.param(WINDOWED["Gemma2"], id="Gemma2 with a window"),
    pytest.param(WINDOWED["GptOss"], id="GptOss"),
    pytest.param(ARCHITECTURES["GPT2"], id="GPT2"),
    pytest.param(LATENT["DeepseekV3"], id="DeepseekV3"),
    pytest.param(ARCHITECTURES["Olmo2"], id="Olmo2", marks=pytest.mark.soak),
    pytest.param(ARCHITECTURES["Qwen2Moe"], id="Qwen2Moe", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("config", [LLAMA])
def test_requests_give_the_same_bits_together_as_alone(config: Any) -> None:
    assert differences(sixteen_bit(config()), is_deterministic=True, requests=8, tokens=8) == 0


@THOROUGH
@pytest.mark.parametrize(
    "config", [MIXTRAL, pytest.param(ARCHITECTURES["Llama"], id="Llama", marks=pytest.mark.soak)]
)
def test_a_hundred_requests_give_the_same_bits_together_as_alone(config: Any) -> None:
    assert differences(sixteen_bit(config()), is_deterministic=True, requests=100, tokens=8) == 0


@THOROUGH
@pytest.mark.parametrize("config", CASES)
def test_requests_to_other_models_give_the_same_bits_together_as_alone(config: Any) -> None:
    assert differences(sixteen_bit(config()), is_deterministic=True, requests=25, tokens=8) == 0


@pytest.mark.parametrize("config", [LLAMA])
def test_without_it_they_do_not(config: Any) -> None:
    assert differences(sixteen_bit(config()), is_deterministic=False, requests=8, tokens=8) > 0
