"""Writing a model folder as a GGUF file, and reading it again."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosine_engine import zoo
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.transformers_model import folder_config, transformers_config, transformers_weights
from cosine_engine.gguf.writing import FILE_TYPES, StoredModel, write_gguf
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import SIZES, write_sample
from tests.thoroughness import quick_first

SMALL = zoo.folder("draft-code")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "model"))


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_sizes_ends_tokenizer_and_template_are_the_models(tmp_path: Path) -> None:
    folder = zoo.folder("target")
    write_gguf(folder, tmp_path / "a.gguf")
    model = GgufFile.open(tmp_path / "a.gguf")
    assert (model.vocab_tokens, model.context_tokens, model.weights) == (4096, 1024, "Q8_0")
    assert model.kv_bytes_per_token(2) == 8 * 4 * 64 * 2 * 2
    assert model.metadata["tokenizer.chat_template"] == (folder / "chat_template.jinja").read_text("utf-8")
    assert model.metadata["tokenizer.ggml.pre"] == "smollm"
    tokens: list[str] = model.metadata["tokenizer.ggml.tokens"]
    stored = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    assert {text: token for token, text in enumerate(tokens)}.items() >= stored["model"]["vocab"].items()
    assert [tokens[added["id"]] for added in stored["added_tokens"]] == [
        added["content"] for added in stored["added_tokens"]
    ]


@pytest.mark.parametrize("weights", quick_first(FILE_TYPES, quick=2))
def test_matrices_are_in_the_type_asked_for_and_vectors_in_float32(weights: str, tmp_path: Path) -> None:
    write_gguf(SMALL, tmp_path / "a.gguf", weights=weights)
    model = GgufFile.open(tmp_path / "a.gguf")
    kinds = {len(tensor.shape): tensor.kind for tensor in model.tensors.values()}
    assert kinds == {1: "F32", 2: weights}
    stored = StoredModel.read(SMALL).weights()["model.embed_tokens.weight"]
    # One step of the coarsest of them: Q4_0 has eight on either side of zero.
    step = np.abs(stored).max() / 8
    assert np.abs(model.weight("token_embd.weight") - stored).max() <= step


def test_a_model_without_a_tokenizer_and_a_reduced_vocabulary_have_tokens_without_texts(
    copy: Path, tmp_path: Path
) -> None:
    write_gguf(copy, tmp_path / "a.gguf")
    whole = GgufFile.open(tmp_path / "a.gguf")
    assert (whole.metadata["tokenizer.ggml.model"], whole.draft_vocabulary) == ("none", None)
    shutil.copy(zoo.tokenizer_folder() / "tokenizer.json", copy)
    DraftVocabulary(tuple(range(3, 3000))).write(copy)
    write_gguf(copy, tmp_path / "b.gguf")
    reduced = GgufFile.open(tmp_path / "b.gguf")
    assert (reduced.metadata["tokenizer.ggml.model"], reduced.draft_vocabulary) == ("none", tuple(range(3, 3000)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "not SiLU"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}}, "is scaled"),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], reason: str, copy: Path, tmp_path: Path) -> None:
    change(copy, **changed)
    with pytest.raises(UsageError, match=reason):
        write_gguf(copy, tmp_path / "a.gguf")
    assert list(tmp_path.iterdir()) == [copy]


def test_other_tokenizers_and_types_are_refused_and_leave_nothing(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written in 'Q4_K'"):
        write_gguf(copy, tmp_path / "a.gguf", weights="Q4_K")
    tokenizer = json.loads((zoo.tokenizer_folder() / "tokenizer.json").read_text("utf-8"))
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer | {"pre_tokenizer": {"type": "Whitespace"}}))
    with pytest.raises(UsageError, match="Only byte-level BPE"):
        write_gguf(copy, tmp_path / "a.gguf")
    change(copy, eos_token_id=[1, 2, 3, 4])
    (copy / "tokenizer.json").unlink()
    (copy / "generation_config.json").unlink()
    with pytest.raises(UsageError, match="has 4 tokens that end a text"):
        write_gguf(copy, tmp_path / "a.gguf")
    assert list(tmp_path.iterdir()) == [copy]


def test_a_models_own_configuration_and_weights_come_back(tmp_path: Path) -> None:
    write_gguf(SMALL, tmp_path / "a.gguf", weights="BF16")
    model = GgufFile.open(tmp_path / "a.gguf")
    stored = json.loads((SMALL / "config.json").read_text())
    told = {name: value for name, value in transformers_config(model).items() if value is not None}
    assert told.items() <= stored.items()
    own = StoredModel.read(SMALL).weights()
    weights = dict(transformers_weights(model, own))
    assert weights.keys() == own.keys()
    assert all(np.array_equal(weights[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "rwkv7"}, "of the kind 'rwkv7' are not supported.*or --engine llama"),
        # What keeps a recurrent state llama.cpp is not used for.
        ({"general.architecture": "rwkv7", "rwkv7.wkv.head_size": 16}, r"own folder\.$"),
        ({"llama.rope.scaling.type": "spiral"}, "stretched in the way 'spiral'"),
        ({"llama.feed_forward_length": None}, "does not say its llama.feed_forward_length"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(metadata: dict[str, Any], reason: str, tmp_path: Path) -> None:
    others = {key.replace("llama", "rwkv7"): size for key, size in SIZES.items()}
    whole = {**others, "llama.feed_forward_length": 64, **metadata}
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", whole))
    with pytest.raises(UsageError, match=reason):
        transformers_config(model)
    sizes = folder_config(model)
    assert (sizes["vocab_size"], sizes["max_position_embeddings"], "architectures" in sizes) == (4, 64, False)
