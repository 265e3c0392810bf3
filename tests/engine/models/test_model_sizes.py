"""Sizes equal those of transformers for every shape of configuration, with and without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cosine_engine.context_length import UNBOUNDED_TOKENS
from cosine_engine.forward.support import context_tokens
from cosine_engine.models import model_sizes
from cosine_engine.models.model_sizes import ModelSizes
from cosine_protocol.errors import UsageError


@pytest.fixture(params=["with transformers", "without"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(model_sizes, "find_spec", lambda name: None)


def read(folder: Path, config: object) -> tuple[int, int]:
    (folder / "config.json").write_text(json.dumps(config))
    sizes = ModelSizes.read(folder)
    return sizes.vocab_tokens, sizes.context_tokens


TEXT: dict[str, Any] = {"model_type": "llama", "vocab_size": 32_064, "max_position_embeddings": 4096}
SHAPES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "GPT-2": (
        {"model_type": "gpt2", "vocab_size": 50_257, "n_positions": 1024, "n_ctx": 1024, "n_embd": 8},
        (50_257, 1024),
    ),
    "Bloom": ({"model_type": "bloom", "vocab_size": 9}, (9, UNBOUNDED_TOKENS)),
    "ChatGLM": ({"model_type": "nobodys", "vocab_size": 9, "seq_length": 8192}, (9, 8192)),
    "Gemma 3": (
        {"model_type": "gemma3", "text_config": {**TEXT, "model_type": "gemma3_text"}, "vision_config": {}},
        (32_064, 4096),
    ),
    "a part within a part": (
        {"model_type": "nobodys", "thinker_config": {"text_config": TEXT}, "vocab_size": 7},
        (32_064, 4096),
    ),
}


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_tells_the_sizes_of_its_model_of_texts(tmp_path: Path, shape: str) -> None:
    config, sizes = SHAPES[shape]
    assert read(tmp_path, config) == sizes


def test_a_configuration_written_out_says_the_same_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_sizes, "find_spec", lambda name: None)
    compared = 0
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = tf.AutoConfig.for_model(kind)
            text = config.get_text_config()
        except Exception:  # Broad, because each kind has its own reasons why it needs more than its defaults.
            continue
        if isinstance(getattr(text, "vocab_size", None), int):
            found = read(tmp_path, json.loads(config.to_json_string(use_diff=False)))
            assert found == (text.vocab_size, context_tokens(config)), kind
            compared += 1
    assert compared > 100


def test_a_drafter_without_weights_needs_no_pytorch() -> None:
    """Its import takes five seconds and 300 MB."""
    code = """
import sys
from cosine_engine.models.served import ModelSource, load_served
from cosine_protocol.records import Role
load_served(ModelSource(model="ngram", target="zoo:target"), Role.DRAFTER, lambda *_: None, measure_s=0.01)
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_defaults_of_a_kind_that_its_file_leaves_out_are_those_of_transformers(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 8}}
    assert read(tmp_path, config) == (262_208, 131_072)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("config", [{}, [], {"vocab_size": "many"}, {"vocab_size": -1}])
def test_a_folder_that_names_no_vocabulary_is_refused(tmp_path: Path, config: object) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, config)
