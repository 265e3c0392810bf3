"""The computations that are measured are the model's own, and experts in tiles compute what experts compute."""

import copy

import pytest
import torch

from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.row_kernels import attention_tiles, hides_padding, product_kernels, tile_experts
from cosine_node.engine.torch.row_tiles import RowTiles
from tests.node.engine.tiny_models import ARCHITECTURES, build

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Mixtral"])
def test_every_product_of_a_model_is_measured_once_for_each_shape(name: str) -> None:
    model = build(ARCHITECTURES[name]())
    kernels = product_kernels(model)
    for kernel in kernels:
        assert len(kernel.compute(torch.ones(3, kernel.width))) == 3
    widths = sorted(kernel.width for kernel in kernels)
    # Llama: queries, keys, gate and up, down, logits. GPT-2: attention and its output, both of the feed-forward,
    # logits. Mixtral: queries, keys, two of the experts, the router, logits.
    expected = {"Llama": [64, 64, 64, 64, 128], "GPT2": [64, 64, 64, 64, 256]}
    assert widths == expected.get(name, [64, 64, 64, 64, 64, 128])


def test_the_products_of_a_flat_decoder_are_its_joined_ones() -> None:
    flat = PackedModel(build(ARCHITECTURES["Llama"]()), slots=16).flat
    assert flat is not None
    outputs = [kernel.compute(torch.ones(2, kernel.width)).shape[1] for kernel in flat.kernels()]
    assert outputs == [128, 64, 256, 64, 200]


@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "Qwen3Moe"])
def test_experts_in_tiles_compute_what_experts_compute(name: str) -> None:
    model = build(ARCHITECTURES[name]())
    tiled = copy.deepcopy(model)
    tile_experts(tiled, RowTiles(4, 64))
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(tiled(ids).logits, model(ids).logits)


def test_a_model_without_experts_is_left_as_it_is() -> None:
    model = build(ARCHITECTURES["GPT2"]())
    tile_experts(model, RowTiles(4, 64))
    assert len(model(torch.tensor([[5, 6]])).logits[0]) == 2


@pytest.mark.thorough
def test_hidden_keys_at_the_end_of_a_page_change_no_bit_on_a_cpu() -> None:
    shapes = {(2, 16, 16)}
    tiles = attention_tiles(shapes, dtype=torch.bfloat16, device=CPU)
    assert hides_padding(shapes, tiles, dtype=torch.bfloat16, device=CPU)
