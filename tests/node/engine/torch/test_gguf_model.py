"""GGUF files in the torch engine: the same model as the folder it was made from, and as its weights by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

from cosine_node.engine.base import Row
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import StoredModel, write_gguf
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import COMMON, VOCAB, build, tiny_llama
from tests.thoroughness import soak_rest

PROMPT = (3, 70, 140, 9, 11)
TOKENS = 12


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "tiny"
    tiny_llama().save_pretrained(folder)
    return folder


def unfolded(llama: Path, weights: str, folder: Path) -> Path:
    write_gguf(llama, folder / f"{weights}.gguf", weights=weights)
    return unfold(folder / f"{weights}.gguf", cache_folder=folder / "cache")


def text(engine: TorchEngine, temperature: float) -> list[int]:
    """What an engine says, token by token."""
    sequence = engine.open(sampling=Sampling(temperature=temperature, seed=7), prompt_tokens=len(PROMPT))
    fed: tuple[int, ...] = PROMPT
    said: list[int] = []
    while len(said) < TOKENS:
        (result,) = engine.forward([Row.chain(sequence, fed, scored_from=len(fed) - 1)])
        engine.keep(sequence, range(len(fed)))
        said.append(result.choices[-1].token)
        fed = (said[-1],)
    return said


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_file_in_float32_says_what_its_folder_says(temperature: float, llama: Path, tmp_path: Path) -> None:
    from_file = load_engine(str(unfolded(llama, "F32", tmp_path)), device="cpu", pool_tokens=64)
    from_folder = load_engine(str(llama), device="cpu", pool_tokens=64)
    assert (from_file.numerics, from_folder.numerics) == ("gguf:F32+float32", "float32")
    assert (from_file.vocab_tokens, from_file.context_tokens) == (VOCAB, from_folder.context_tokens)
    assert text(from_file, temperature) == text(from_folder, temperature)


@pytest.mark.parametrize("weights", soak_rest(["Q4_1", "Q8_0"]))
def test_a_quantised_file_is_the_model_of_its_dequantised_weights(
    weights: str, llama: Path, tmp_path: Path
) -> None:
    folder = unfolded(llama, weights, tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    loaded = load_gguf_model(file, read_config(str(folder)), dtype=torch.float32)
    by_hand = {"model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight", "lm_head.weight": "output.weight"}
    for name, stored in by_hand.items():
        assert torch.equal(loaded.state_dict()[name], torch.from_numpy(file.weight(stored)))
    own = StoredModel.read(llama).weights()
    for name, values in loaded.state_dict().items():
        # A weight is off by half a step at most: 15 steps in 4 bits, 254 in 8.
        step = np.ptp(own[name]) / (15 if weights == "Q4_1" else 254)
        assert np.abs(values.numpy() - own[name]).max() <= step
    assert load_engine(str(folder), device="cpu", pool_tokens=64).numerics == f"gguf:{weights}+float32"


def test_dtype_and_quantisation_are_obeyed_and_named(llama: Path, tmp_path: Path) -> None:
    folder = str(unfolded(llama, "Q8_0", tmp_path))
    engine = load_engine(folder, dtype="bfloat16", device="cpu", pool_tokens=64)
    assert engine.numerics == "gguf:Q8_0+bfloat16"
    pytest.importorskip("torchao")
    assert load_engine(folder, quantize="int8", device="cpu", pool_tokens=64).numerics == "gguf:Q8_0+float32/int8"


def qwen2() -> Any:
    return tf.Qwen2Config(**COMMON)


def qwen3() -> Any:
    return tf.Qwen3Config(**COMMON, head_dim=16)


def llama3() -> Any:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    lengths = {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    return tf.LlamaConfig(**COMMON, rope_parameters={**rope, **lengths})


def write_model(model: Any, file: Path, kind: str, rope_factors: Any = None) -> None:
    """A model of transformers as a file, tensor by tensor, in float32; not for rotary weights of the llama kind."""
    config = model.config
    names = get_tensor_name_map(MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    writer = GGUFWriter(str(file), kind)
    for key, size in {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": 16,
        "attention.value_length": 16,
    }.items():
        writer.add_uint32(f"{kind}.{key}", size)
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32(f"{kind}.rope.freq_base", config.rope_parameters["rope_theta"])
    for name, values in model.state_dict().items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        array = values.numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = len(array) // 16
            array = np.ascontiguousarray(array.reshape(heads, 2, 8, -1).swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(gguf_name, array)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(torch.tensor([list(range(3, 90))])).logits)


@pytest.mark.parametrize(("make", "kind"), [(qwen2, "qwen2"), (qwen3, "qwen3")])
def test_other_kinds_are_read_exactly(make: Callable[[], Any], kind: str, tmp_path: Path) -> None:
    model = build(make())
    write_model(model, tmp_path / "a.gguf", kind)
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    loaded = load_gguf_model(file, read_config(str(folder)), dtype=torch.float32, attn_implementation="eager")
    assert type(loaded) is type(model)
    assert torch.equal(logits(loaded), logits(model))
    assert load_engine(str(folder), device="cpu", pool_tokens=64).numerics == "gguf:F32+float32"


def test_the_frequencies_of_llama_3_are_those_of_the_file(tmp_path: Path) -> None:
    model = build(llama3())
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(8.0)
    write_model(model, tmp_path / "a.gguf", "llama", rope_factors=factors)
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    loaded = load_gguf_model(file, read_config(str(folder)), dtype=torch.float32, attn_implementation="eager")
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)
    assert load_engine(str(folder), device="cpu", pool_tokens=64).numerics == "gguf:F32+float32"


def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    model = build(qwen2())
    del model.model.layers[1].mlp.down_proj.weight
    write_model(model, tmp_path / "a.gguf", "qwen2")
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path)
    with pytest.raises(UsageError, match=r"lacks model\.layers\.1\.mlp\.down_proj\.weight"):
        load_engine(str(folder), device="cpu", pool_tokens=64)
