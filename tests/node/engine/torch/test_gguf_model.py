"""GGUF files in the torch engine: the same model as the folder it was made from, and as its weights by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import StoredModel, write_gguf
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.engine.gguf_models import gguf_with_tower, tiny_gguf
from tests.node.engine.random_serving import Asked, serve_alone
from tests.node.engine.tiny_models import COMMON, HELD, VOCAB, build, tiny_llama
from tests.thoroughness import soak_rest


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "tiny"
    tiny_llama().save_pretrained(folder)
    return folder


def unfolded(llama: Path, weights: str, folder: Path) -> Path:
    write_gguf(llama, folder / f"{weights}.gguf", weights=weights)
    return unfold(folder / f"{weights}.gguf", cache_folder=folder / "cache")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_file_in_float32_says_what_its_folder_says(temperature: float, llama: Path, tmp_path: Path) -> None:
    from_file = load_engine(str(unfolded(llama, "F32", tmp_path)), device="cpu", pool_tokens=64)
    from_folder = load_engine(str(llama), device="cpu", pool_tokens=64)
    assert (from_file.numerics, from_folder.numerics) == ("gguf:F32+float32", "float32")
    assert (from_file.vocab_tokens, from_file.context_tokens) == (VOCAB, from_folder.context_tokens)
    asked = Asked([3, 70, 140, 9, 11], Sampling(temperature=temperature, seed=7))
    said, expected = ([token for token, _ in serve_alone(each, asked, 12)] for each in (from_file, from_folder))
    assert said == expected


def test_a_file_with_a_tower_for_images_is_its_language_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, said = Asked([3, 70, 140, 9, 11], Sampling()), []
    for file in (tiny_gguf(), gguf_with_tower(tmp_path / "sha256-0123")):
        folder = unfold(file, cache_folder=tmp_path, is_served=True)
        said.append(serve_alone(load_engine(str(folder), device="cpu", pool_tokens=64, is_served=True), asked, 12))
    assert said[0] == said[1]
    assert [record.message for record in caplog.records if "images and sounds are left out" in record.message]


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
    held = "" if weights == "F32" else HELD
    assert load_engine(str(folder), device="cpu", pool_tokens=64).numerics == f"gguf:{weights}+float32{held}"


def test_dtype_and_quantisation_are_obeyed_and_named(llama: Path, tmp_path: Path) -> None:
    folder = str(unfolded(llama, "Q8_0", tmp_path))
    engine = load_engine(folder, dtype="bfloat16", device="cpu", pool_tokens=64)
    assert engine.numerics == "gguf:Q8_0+bfloat16"
    pytest.importorskip("torchao")
    assert load_engine(folder, quantize="int8", device="cpu", pool_tokens=64).numerics == "gguf:Q8_0+float32/int8"


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


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (tf.Qwen2Config(**COMMON), "qwen2"),
        (tf.Qwen3Config(**COMMON, head_dim=16), "qwen3"),
        (tf.LlamaConfig(**COMMON, rope_parameters=LLAMA3), "llama"),
    ],
    ids=["qwen2", "qwen3", "llama3"],
)
def test_other_kinds_are_read_exactly_and_llama_3_with_the_frequencies_of_the_file(
    config: Any, kind: str, tmp_path: Path
) -> None:
    model, factors = build(config), None
    if kind == "llama":
        plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)
        factors = (plain / model.model.rotary_emb.inv_freq).numpy()
        assert factors.max() == pytest.approx(8.0)
    write_model(model, tmp_path / "a.gguf", kind, rope_factors=factors)
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    loaded = load_gguf_model(file, read_config(str(folder)), dtype=torch.float32, attn_implementation="eager")
    assert type(loaded) is type(model)
    assert torch.allclose(logits(loaded), logits(model), rtol=0, atol=1e-5 if kind == "llama" else 0)
    assert load_engine(str(folder), device="cpu", pool_tokens=64).numerics == "gguf:F32+float32"


def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    model = build(tf.Qwen2Config(**COMMON))
    del model.model.layers[1].mlp.down_proj.weight
    write_model(model, tmp_path / "a.gguf", "qwen2")
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path)
    with pytest.raises(UsageError, match=r"lacks model\.layers\.1\.mlp\.down_proj\.weight"):
        load_engine(str(folder), device="cpu", pool_tokens=64)
