"""Latents serve as keys and values where that is exact; models stay what they were for everybody else."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cosine_node.engine.torch.attention import (
    ATTENTION_NAME,
    expand_latents,
    has_latents,
    keep_latents,
    latent_attention_of,
)
from cosine_node.engine.torch.load_self_test import find_way
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_way import PassWay
from tests.node.engine.tiny_models import LATENT, build, tiny_llama

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = [[7, 8, 9, 40, 41, 42, 43]]


def deepseek() -> Any:
    return build(LATENT["DeepseekV3"]())


def attention_of(model: Any) -> Any:
    return model.model.layers[0].self_attn


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor(TOKENS), use_cache=False).logits
        return found


@pytest.mark.parametrize("name", LATENT)
def test_absorbed_queries_and_expanded_outputs_are_attention_over_expanded_states(name: str) -> None:
    model = build(LATENT[name]())
    attention = next(module for module in model.modules() if hasattr(type(module), "expand_kv"))
    config, tokens = model.config, 5
    heads, rotated = config.num_attention_heads, config.qk_rope_head_dim
    query = torch.randn(1, heads, tokens, config.qk_nope_head_dim + rotated)
    latents, rotated_keys = torch.randn(1, 1, tokens, config.kv_lora_rank), torch.randn(1, 1, tokens, rotated)
    with torch.inference_mode():
        keys, values = attention.expand_kv(latents, rotated_keys)
        expected = ((query @ keys.transpose(2, 3)).softmax(-1) @ values)[0].transpose(0, 1).flatten(1)
        keep_latents(model, ATTENTION_NAME)
        layer = latent_attention_of(attention)
        assert layer is not None
        shared = torch.cat((latents, rotated_keys), -1)
        output = (layer.absorbed(query) @ shared.transpose(2, 3)).softmax(-1) @ shared
        found = layer.expanded(output[0].transpose(0, 1).flatten(1))
    torch.testing.assert_close(found, expected)


def test_a_model_is_its_own_under_another_attention() -> None:
    model = deepseek()
    expected = logits(model)
    PackedModel(model, slots=16)
    model.set_attn_implementation("eager")
    assert torch.equal(logits(model), expected)


def test_it_can_be_undone() -> None:
    model = deepseek()
    keep_latents(model, ATTENTION_NAME)
    assert latent_attention_of(attention_of(model)) is not None
    expand_latents(model)
    assert latent_attention_of(attention_of(model)) is None
    heads = model.config.num_attention_heads * (12 + 8 + 10)
    assert PackedModel(model, slots=16, keeps_latents=False).token_bytes.total == 2 * heads * 4


def test_copies_of_a_model_compute_for_themselves() -> None:
    model = deepseek()
    keep_latents(model, ATTENTION_NAME)
    copied = attention_of(copy.deepcopy(model))
    attention_of(model).config._attn_implementation = ATTENTION_NAME
    copied.config._attn_implementation = "eager"
    keys, _ = copied.expand_kv(torch.ones(1, 1, 3, 16), torch.ones(1, 1, 3, 8))
    assert keys.shape == (1, 4, 3, 20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_models_with_latents_pass_the_self_test_with_them(dtype: torch.dtype) -> None:
    assert find_way(deepseek().to(dtype)) is PassWay.PACKED


def test_a_model_that_does_more_than_expand_is_run_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deepseek()
    own = type(attention_of(model)).expand_kv

    def expand_kv(module: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = own(module, kv_nope, k_rot)
        return keys.tanh(), values

    monkeypatch.setattr(type(attention_of(model)), "expand_kv", expand_kv)
    assert find_way(model) is PassWay.EXPANDED


def test_weights_that_are_no_plain_matrix_are_read_by_asking_the_layer() -> None:
    class Scaled(nn.Linear):
        """Weights are held as another number than they mean, as quantised ones are."""

        def forward(self, rows: Tensor) -> Tensor:
            return 0.5 * super().forward(rows)

    model = deepseek()
    expected = logits(model)
    for layer in model.model.layers:
        own = layer.self_attn.kv_b_proj
        scaled = Scaled(own.in_features, own.out_features, bias=False)
        scaled.weight = nn.Parameter(2 * own.weight.detach())
        layer.self_attn.kv_b_proj = scaled
    torch.testing.assert_close(logits(model), expected)
    assert find_way(model) is PassWay.PACKED


def test_other_models_and_layers_with_a_bias_have_none() -> None:
    assert not has_latents(tiny_llama())
    model = deepseek()
    assert has_latents(model)
    for layer in model.model.layers:
        projection = layer.self_attn.kv_b_proj
        projection.bias = nn.Parameter(torch.zeros(projection.out_features))
    assert not has_latents(model)
