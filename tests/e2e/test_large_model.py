"""A model of random weights is written in little memory, and computed in like any other file."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.stages.engine import load_part
from cosine_protocol.stage_messages import LayerRange
from tests.e2e.large_model import MISTRAL_SMALL, random_blocks, write_large_model

SMALL: Final = replace(MISTRAL_SMALL, layers=2, width=512, inner_width=1024, heads=4, kv_heads=1)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("known") / "target.gguf"
    write_gguf(zoo.folder("target"), file)
    return file


def test_random_blocks_are_about_nothing_in_the_mean_as_weights_are_before_training() -> None:
    blocks = random_blocks(np.random.Generator(np.random.PCG64(1)), 400)
    weights = dequantize(blocks, GGMLQuantizationType.Q4_K)
    assert abs(weights.mean()) < 0.001 and 0.015 < weights.std() < 0.025


def test_a_seed_is_a_model(tmp_path: Path, vocabulary: Path) -> None:
    for name, seed in {"one": 1, "same": 1, "other": 2}.items():
        write_large_model(tmp_path / f"{name}.gguf", SMALL, vocabulary=vocabulary, seed=seed)
    digests = [GgufFile.open(tmp_path / f"{name}.gguf").digest for name in ("one", "same", "other")]
    assert digests[0] == digests[1] != digests[2]


def test_it_has_the_shape_and_the_tokens_that_were_asked_for_and_finite_logits(
    tmp_path: Path, vocabulary: Path
) -> None:
    write_large_model(tmp_path / "a.gguf", SMALL, vocabulary=vocabulary)
    file = GgufFile.open(tmp_path / "a.gguf")
    assert (file.weights, file.vocab_tokens, file.context_tokens) == ("Q4_K", 4096, 32_768)
    known = GgufFile.open(vocabulary).metadata
    for key in known:
        assert not key.startswith("tokenizer.") or file.metadata[key] == known[key]
    folder = unfold(tmp_path / "a.gguf", cache_folder=tmp_path / "cache")
    model = load_part(str(folder), LayerRange(first=0, end=2, layers=2), dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[5, 12, 19]])).logits
    assert bool(torch.isfinite(logits).all()) and 0.1 < float(logits.std()) < 10


def test_memory_does_not_grow_with_the_layers(tmp_path: Path, vocabulary: Path) -> None:
    peaks = []
    for layers in (2, 16):
        tracemalloc.start()
        write_large_model(tmp_path / "a.gguf", replace(SMALL, layers=layers), vocabulary=vocabulary)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    layer_bytes = (tmp_path / "a.gguf").stat().st_size / 18
    assert peaks[1] - peaks[0] < layer_bytes
