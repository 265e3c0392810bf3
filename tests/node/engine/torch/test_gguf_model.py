"""GGUF files in the torch engine: the same model as the folder it was made from."""

from pathlib import Path

import pytest

from cosine_node.engine.torch.loading import load_engine
from cosine_node.gguf.unfolding import unfold
from cosine_protocol.request import Sampling
from tests.node.engine.gguf_architectures import TINY
from tests.node.engine.gguf_models import gguf_with_tower, tiny_folder, tiny_gguf
from tests.node.engine.random_serving import Asked, serve_alone
from tests.node.engine.tiny_models import VOCAB


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_file_in_float32_says_what_its_folder_says(temperature: float, tmp_path: Path) -> None:
    from_file = load_engine(str(unfold(tiny_gguf(), cache_folder=tmp_path)), device="cpu", pool_tokens=64)
    from_folder = load_engine(str(tiny_folder()), device="cpu", pool_tokens=64)
    assert (from_file.numerics, from_folder.numerics) == ("gguf:F32+float32", "float32")
    assert (from_file.vocab_tokens, from_file.context_tokens) == (VOCAB, from_folder.context_tokens)
    asked = Asked([3, 70, 140, 9, 11], Sampling(temperature=temperature, seed=7))
    said, expected = ([token for token, _ in serve_alone(each, asked, 12)] for each in (from_file, from_folder))
    assert said == expected


def test_a_file_with_a_tower_for_images_is_its_language_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, said = Asked([3, 70, 140, 9, 11], Sampling()), []
    for file in (TINY["llama"].write(tmp_path / "plain.gguf"), gguf_with_tower(tmp_path / "sha256-0123")):
        folder = unfold(file, cache_folder=tmp_path, is_served=True)
        said.append(serve_alone(load_engine(str(folder), device="cpu", pool_tokens=64), asked, 12))
    assert said[0] == said[1]
    assert [record.message for record in caplog.records if "images and sounds are left out" in record.message]


def test_dtype_and_quantisation_are_obeyed_and_named(tmp_path: Path) -> None:
    folder = str(unfold(tiny_gguf("Q8_0"), cache_folder=tmp_path))
    engine = load_engine(folder, dtype="bfloat16", device="cpu", pool_tokens=64)
    assert engine.numerics == "gguf:Q8_0+bfloat16"
    pytest.importorskip("torchao")
    assert load_engine(folder, quantize="int8", device="cpu", pool_tokens=64).numerics == "gguf:Q8_0+float32/int8"
