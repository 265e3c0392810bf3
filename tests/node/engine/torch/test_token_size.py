"""A token takes as much memory in the pool of a loaded model as was told before its weights were read."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.torch.load_self_test import find_way, token_bytes_of
from tests.node.engine.surveyed_models import tiny_configs
from tests.node.engine.tiny_models import ARCHITECTURES, OWN_ATTENTION, RECURRENT, STEPPED, WINDOWED, build
from tests.thoroughness import quick_first

MAKES = ARCHITECTURES | {f"{name}-window": make for name, make in WINDOWED.items()}
MAKES |= OWN_ATTENTION | RECURRENT | STEPPED | {"deepseek_v3": lambda: tiny_configs("deepseek_v3")[0]}
QUICK = ["Llama", "Gemma2-window", "falcon-multi-query", "qwen3_next", "deepseek_v3"]
NAMES = quick_first(QUICK + [name for name in MAKES if name not in QUICK], quick=len(QUICK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_a_token_is_known_before_weights_are_read(name: str, dtype: torch.dtype) -> None:
    model = build(MAKES[name]()).to(dtype)
    # The states of a mixture of experts are as in bfloat16, twice.
    off = 0.1 if name in RECURRENT | STEPPED else 0.0
    way = find_way(model)
    expected = way.pass_model(model, slots=16).token_bytes
    told = token_bytes_of(MAKES[name](), dtype)
    assert told is not None
    assert told.total == pytest.approx(expected.total, rel=off)
    assert (told.windowed, told.window_tokens) == (expected.windowed, expected.window_tokens)


def test_it_is_that_of_the_layers_keys_and_values() -> None:
    config: Any = ARCHITECTURES["Llama"]()
    assert token_bytes_of(config, torch.bfloat16) == TokenBytes(2 * 2 * 2 * 16 * 2)


def test_a_model_that_cannot_be_run_without_weights_has_none() -> None:
    config = tf.RwkvConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2)
    assert token_bytes_of(config, torch.float32) is None
