"""A GGUF file as a model of transformers: what was written comes back under its own names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.transformers_model import refuse_others, transformers_config, transformers_weights
from cosine_node.gguf.writing import StoredModel, write_gguf
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import SIZES, write_sample


@pytest.mark.parametrize("name", ["target", "draft-code"])
def test_a_models_own_configuration_and_weights_come_back(name: str, tmp_path: Path) -> None:
    folder = zoo.folder(name)
    write_gguf(folder, tmp_path / "a.gguf", weights="BF16")
    model = GgufFile.open(tmp_path / "a.gguf")
    stored = json.loads((folder / "config.json").read_text())
    assert transformers_config(model).items() <= stored.items()
    weights, own = dict(transformers_weights(model)), StoredModel.read(folder).weights()
    assert weights.keys() == own.keys()
    assert all(np.array_equal(weights[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "mamba"}, "of the kind 'mamba' cannot be read, only llama, qwen2, qwen3"),
        ({"llama.rope.scaling.type": "yarn"}, "stretched in the way 'yarn'"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(metadata: dict[str, Any], reason: str, tmp_path: Path) -> None:
    sizes = {"mamba.block_count": 1, "mamba.context_length": 9, "mamba.embedding_length": 32}
    heads = {"mamba.attention.head_count": 4}
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", {**sizes, **heads, **metadata}))
    with pytest.raises(UsageError, match=reason):
        refuse_others(model)


def test_of_other_architectures_the_sizes_are_told(tmp_path: Path) -> None:
    keys = {key.replace("llama", "mamba"): size for key, size in SIZES.items()}
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", {"general.architecture": "mamba", **keys}))
    assert transformers_config(model) == {
        "model_type": "mamba",
        "vocab_size": 4,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
    }


def test_a_tensor_of_another_model_is_named(tmp_path: Path) -> None:
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", vector="blk.0.ssm_a.weight"))
    with pytest.raises(UsageError, match=r"has a tensor blk\.0\.ssm_a\.weight"):
        dict(transformers_weights(model))


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    wrong = {"llama.feed_forward_length": 64, "llama.rope.freq_base": "10000"}
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", wrong))
    with pytest.raises(UsageError, match=r"llama\.rope\.freq_base that is no number"):
        transformers_config(model)
