"""GGUF files in the torch engine: the same model as the folder it was made from, and as its weights by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import StoredModel, write_gguf
from cosine_protocol.request import Sampling
from tests.node.engine.gguf_models import gguf_with_tower, tiny_gguf
from tests.node.engine.random_serving import Asked, serve_alone
from tests.node.engine.tiny_models import HELD, VOCAB, tiny_llama
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
