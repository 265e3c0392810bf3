"""Weights held in float16: the products of float32 with the rounded weights, in passes of any number of rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosine_engine.blocks import held_linear
from cosine_engine.blocks.held_linear import FORMS, HALF, HeldLinear, hold
from cosine_engine.blocks.held_matrix import HeldMatrix
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.load_options import LoadOptions
from cosine_engine.processor import reads_float16
from cosine_engine.torch import loading
from cosine_engine.torch.load_self_test import check_exactness
from cosine_engine.torch.loading import check_options, load_model
from cosine_protocol.errors import UsageError
from tests.engine.engines import rounded
from tests.engine.gguf_models import tiny_gguf
from tests.engine.loaded import torch_engine
from tests.engine.tiny_models import tiny_llama
from tests.thoroughness import quick_first

pytestmark = pytest.mark.skipif(not reads_float16(), reason="This processor does not read float16")


def linear(inputs: int, outputs: int, *, has_bias: bool) -> nn.Linear:
    torch.manual_seed(inputs)
    return nn.Linear(inputs, outputs, bias=has_bias)


def in_half(plain: nn.Linear) -> HeldLinear:
    matrix = HeldMatrix.of_weights(plain.weight.detach().float(), FORMS[HALF])
    assert matrix is not None
    return HeldLinear(plain, matrix)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def test_a_known_model_stays_exact() -> None:
    model, expected = tiny_llama(), rounded(tiny_llama())
    assert hold(model, HALF) == 15
    check_exactness(model)
    ids = torch.arange(3, 20)[None]
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, expected(ids).logits, rtol=1e-4, atol=1e-5)


def test_it_is_for_float32_and_processors_with_such_products_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="requires a CPU and float32 activations"):
        check_options(LoadOptions(dtype="bfloat16", device="cpu", quantize="float16"))
    with pytest.raises(UsageError, match="use --dtype float16 or drop --dtype"):
        check_options(LoadOptions(dtype="float16", device="cpu", quantize="float16"))
    monkeypatch.setattr(loading, "reads_float16", lambda: False)
    with pytest.raises(UsageError, match="does not read float16 weights"):
        check_options(LoadOptions(dtype="auto", device="cpu", quantize="float16"))


@pytest.mark.parametrize(
    ("stored", "options", "numerics"),
    [
        (torch.bfloat16, {}, "float32/float16 deterministic"),
        (torch.float32, {}, "float32 deterministic"),
        (torch.bfloat16, {"dtype": "float32"}, "float32 deterministic"),
    ],
)
def test_weights_of_16_bits_are_held_so_by_default(
    stored: torch.dtype, options: dict[str, Any], numerics: str, tmp_path: Path
) -> None:
    tiny_llama().to(stored).save_pretrained(tmp_path)
    assert torch_engine(tmp_path, pool_tokens=32, **options).numerics == numerics


@pytest.mark.parametrize("weights", quick_first(["F16", "Q4_1"]))
def test_a_gguf_file_is_held_with_the_values_of_its_blocks(weights: str, tmp_path: Path) -> None:
    folder = str(unfold(tiny_gguf(weights), cache_folder=tmp_path))
    held = torch_engine(folder, quantize="float16", pool_tokens=32)
    dense = rounded(load_model(ModelFiles.in_folder(Path(folder)), dtype=torch.float32))
    assert held.numerics == f"gguf:{weights}+float32/float16 deterministic"
    assert sum(isinstance(module, HeldLinear) for module in held.model.modules()) == 15
    for name, module in held.model.named_modules():
        if isinstance(module, HeldLinear):
            assert torch.equal(module.weight, dense.get_submodule(name).weight), name


def test_layers_with_weights_that_float16_lacks_stay_as_they_are() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = 1e5
    assert hold(model, HALF) == 14
    assert type(model.model.layers[1].mlp.up_proj) is nn.Linear
    check_exactness(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(100, 70), (576, 2048)])
def test_products_are_those_of_the_rounded_weights_and_are_rounded_once(
    inputs: int, outputs: int, dtype: torch.dtype, *, has_bias: bool
) -> None:
    plain = linear(inputs, outputs, has_bias=has_bias).to(dtype)
    held = in_half(plain)
    vectors = noise(2, 3, inputs).to(dtype)
    bias = plain.bias.double() if has_bias else None
    rounded_weight = plain.weight.half() if dtype is torch.float32 else plain.weight
    exact = F.linear(vectors.double(), rounded_weight.double(), bias)
    found = held(vectors)
    assert found.dtype is held.weight.dtype is dtype
    # Half a unit in the last place, and the error of float32 sums.
    torch.testing.assert_close(found.double(), exact, rtol=max(1e-5, 0.51 * torch.finfo(dtype).eps), atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "is_fast", "is_known", "held"),
    [
        ("bfloat16", False, True, 15),
        ("bfloat16", True, True, 0),
        ("bfloat16", False, False, 0),
        ("float16", False, True, 15),
    ],
)
def test_16_bits_that_a_processor_would_emulate_are_multiplied_in_float32(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dtype: str,
    *,
    is_fast: bool,
    is_known: bool,
    held: int,
) -> None:
    monkeypatch.setattr(held_linear, "has_fast_bfloat16", lambda: is_fast)
    monkeypatch.setattr(held_linear, "has_fast_float16", lambda: is_fast)
    monkeypatch.setattr(held_linear, "reads_float16", lambda: is_known)
    tiny_llama().save_pretrained(tmp_path)
    engine = torch_engine(tmp_path, dtype=dtype, pool_tokens=32)
    assert engine.numerics == dtype
    assert sum(isinstance(module, HeldLinear) for module in engine.model.modules()) == held
    if held:
        assert all(weight.untyped_storage().resizable() for weight in engine.model.parameters())
