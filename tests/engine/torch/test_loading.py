"""A folder becomes an engine whose weights are held once; what cannot be loaded is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.base import PREFIX, Row
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.load_options import LoadOptions
from cosine_engine.pool_size import PASS_TOKENS, WINDOW_SPARE_TOKENS, PoolSize
from cosine_engine.torch import loading
from cosine_engine.torch.loading import check_options, resolve_dtype
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.loaded import torch_engine
from tests.engine.tiny_models import (
    ARCHITECTURES,
    COMMON,
    HELD,
    OWN_ATTENTION,
    STEPPED,
    VOCAB,
    build,
    pool_bytes,
    tiny_llama,
)
from tests.thoroughness import soak_rest


@pytest.fixture
def llama_folder(tmp_path: Path) -> str:
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")


def test_a_folder_becomes_an_engine_with_whole_pages(llama_folder: str) -> None:
    engine = torch_engine(llama_folder, pool_tokens=100)
    assert (engine.numerics, engine.vocab_tokens) == (f"float32{HELD}" + (" deterministic" if HELD else ""), VOCAB)
    # No sequence is longer than the pool.
    assert engine.free_tokens == engine.context_tokens == 112
    # A spare slot, two layers, two heads of 16, keys and values, four bytes each.
    assert pool_bytes(engine._passes.store) == (112 + 1) * 2 * 2 * 16 * 2 * 4
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    assert len(engine.forward([Row(sequence, (3,), (0,), (PREFIX,))])[0].choices) == 1
    engine = torch_engine(llama_folder, dtype="bfloat16", pool_tokens=300)
    assert (engine.numerics, engine.context_tokens, engine.free_tokens) == ("bfloat16", 256, 304)


def test_a_pool_takes_the_memory_it_is_given(llama_folder: str) -> None:
    size = PoolSize(size_bytes=1 << 20)
    engine = torch_engine(llama_folder, pool_tokens=size)
    token_bytes = pool_bytes(engine._passes.store) // (engine.free_tokens + 1)
    assert abs(pool_bytes(engine._passes.store) - (1 << 20)) <= PAGE_TOKENS * token_bytes
    with pytest.raises(UsageError, match="one request takes 256"):
        torch_engine(llama_folder, pool_tokens=PoolSize(size_bytes=1 << 12))


def test_a_verifier_holds_windows_only_in_layers_that_look_back_no_further(tmp_path: Path) -> None:
    config = tf.Gemma2Config(
        **COMMON | {"max_position_embeddings": 32_768},
        head_dim=16,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
    )
    build(config).save_pretrained(tmp_path)
    size = PoolSize(requests=2, is_verifier=True)
    engine = torch_engine(tmp_path, pool_tokens=size)
    assert engine.free_tokens == 32_768
    windowed = 2 * (64 + WINDOW_SPARE_TOKENS) + PASS_TOKENS
    layer_bytes = 2 * 2 * 16 * 4
    assert pool_bytes(engine._passes.store) == (32_768 + 1 + windowed + PAGE_TOKENS) * layer_bytes
    drafter = torch_engine(tmp_path, pool_tokens=PoolSize(requests=2))
    assert pool_bytes(drafter._passes.store) == (drafter.free_tokens + 1) * 2 * layer_bytes


def test_auto_dtype_is_the_stored_one_off_the_cpu() -> None:
    config = tf.LlamaConfig(dtype="bfloat16")
    assert resolve_dtype("auto", device=torch.device("cuda"), config=config) == torch.bfloat16
    assert resolve_dtype("auto", device=torch.device("cpu"), config=config) == torch.float32


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "int3"}, "not a supported dtype"),
        ({"device": "abacus"}, "is not a device"),
        ({"device": "cuda:99"}, "has no device 'cuda:99'"),
        ({"device": "meta"}, "not a supported device"),
        ({"quantize": "int3"}, "not a supported quantisation; use float16, int8, int4 or stored"),
        ({"quantize": "int4", "dtype": "bfloat16"}, "requires a CPU and float32 activations; drop --dtype"),
    ],
)
def test_bad_options_are_one_sentence(llama_folder: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        torch_engine(llama_folder, pool_tokens=32, **{"device": "cpu", **options})
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=sentence):
        check_options(LoadOptions(**{"device": "cpu", **options}))


@pytest.mark.parametrize("dtype", soak_rest(["bfloat16", "float32"]))
@pytest.mark.parametrize("architecture", soak_rest(["Llama", "Gemma3", "Mixtral"]))
def test_int8_weights_pass_the_self_test_and_stand_in_the_numerics(
    tmp_path: Path, architecture: str, dtype: str
) -> None:
    pytest.importorskip("torchao")
    model = build(ARCHITECTURES[architecture]())
    model.save_pretrained(tmp_path)
    whole, held = (
        torch_engine(tmp_path, dtype=dtype, quantize=quantize, pool_tokens=32) for quantize in (None, "int8")
    )
    assert (whole.numerics, held.numerics) == (dtype, f"{dtype}/int8")
    for engine in (whole, held):
        row = Row.chain(engine.open(sampling=Sampling(), prompt_tokens=1), (3,))
        assert engine.forward([row])[0].choices


def test_what_is_stored_quantised_is_not_quantised_again(
    llama_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "is_torchao_available", lambda: True)
    config = Path(llama_folder) / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"quantization_config": {"quant_method": "gptq"}})
    )
    with pytest.raises(UsageError, match="stored in gptq and cannot be quantised again"):
        torch_engine(llama_folder, quantize="int8", pool_tokens=32)


@pytest.mark.gpu
def test_int4_weights_pass_the_self_test_on_a_gpu(llama_folder: str) -> None:
    pytest.importorskip("torchao")
    pytest.importorskip("accelerate")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    engine = torch_engine(llama_folder, device="cuda", quantize="int4", pool_tokens=32)
    assert engine.numerics == "bfloat16/int4"
    with pytest.raises(UsageError, match="add --dtype bfloat16"):
        torch_engine(llama_folder, device="cuda", dtype="float32", quantize="int4", pool_tokens=32)


def test_a_missing_folder_and_missing_or_damaged_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        torch_engine(tmp_path / "absent", pool_tokens=32)
    with pytest.raises(UsageError, match="No model can be read"):
        torch_engine(tmp_path, pool_tokens=32)
    tiny_llama().config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"weights .* cannot be read"):
        torch_engine(tmp_path, pool_tokens=32)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(UsageError, match=r"weights .* cannot be read"):
        torch_engine(tmp_path, pool_tokens=32)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (OWN_ATTENTION["falcon-alibi"], "with their own attention, request by request: slower than packed passes"),
        (STEPPED["mamba"], "mamba models run with their own layers, request by request and token by token"),
    ],
    ids=["falcon", "mamba"],
)
def test_a_model_whose_passes_cannot_be_packed_runs_with_its_own_layers_and_says_so(
    make: Callable[[], Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(make()).save_pretrained(tmp_path)
    engine = torch_engine(tmp_path, pool_tokens=PoolSize(size_bytes=1 << 24))
    assert said in caplog.text
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    assert len(engine.forward([Row(sequence, (3,), (0,), (PREFIX,))])[0].choices) == 1


def weights_in_files(model: Any) -> set[str]:
    """The names of weights whose memory PyTorch has not allocated itself."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name for name, weight in weights.items() if not weight.untyped_storage().resizable()}


@pytest.mark.parametrize(
    ("make", "are_left"),
    [
        # Projections are joined.
        (ARCHITECTURES["Llama"], False),
        (ARCHITECTURES["Gemma2"], True),
        # Experts are joined when they are read.
        (ARCHITECTURES["Mixtral"], False),
    ],
    ids=["Llama", "Gemma2", "Mixtral"],
)
def test_weights_are_held_once_and_stay_in_their_file_where_all_are_used_as_they_are(
    make: Callable[[], Any], are_left: bool, tmp_path: Path
) -> None:
    build(make()).save_pretrained(tmp_path)
    model = torch_engine(tmp_path, dtype="float32", pool_tokens=512)._passes.model
    assert weights_in_files(model) == {name for name, _ in model.named_parameters() if are_left}
