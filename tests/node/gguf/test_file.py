"""A GGUF file as a model: what it says of itself, and what is refused."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from cosine_node.gguf.file import DRAFT_VOCABULARY, GgufFile
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import EMBEDDING, write_sample

HEAD_SIZE = 8


def test_sizes_are_those_of_the_metadata(tmp_path: Path) -> None:
    ends = {
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 3,
        "tokenizer.ggml.eom_token_id": 2,
    }
    model = GgufFile.open(write_sample(tmp_path / "small.gguf", ends))
    assert (model.architecture, model.name, model.weights) == ("llama", "small", "Q8_0")
    assert (model.vocab_tokens, model.context_tokens, model.eos) == (4, 64, (2, 3))
    assert model.kv_bytes_per_token(2) == 2 * 2 * 2 * HEAD_SIZE * 2
    assert model.draft_vocabulary is None


def test_heads_may_differ_by_layer_and_have_sizes_of_their_own(tmp_path: Path) -> None:
    heads = {"llama.attention.head_count_kv": [1, 2], "llama.attention.key_length": 16}
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", heads))
    assert model.kv_bytes_per_token(4) == (1 + 2) * (16 + HEAD_SIZE) * 4


def test_a_draft_vocabulary_leaves_a_token_for_all_others(tmp_path: Path) -> None:
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", {DRAFT_VOCABULARY: [3, 5, 9]}))
    assert model.draft_vocabulary == (3, 5, 9)
    with pytest.raises(UsageError, match="not for a model of 4 tokens"):
        GgufFile.open(write_sample(tmp_path / "b.gguf", {DRAFT_VOCABULARY: [3, 5, 7, 9]}))
    with pytest.raises(UsageError, match="must rise"):
        GgufFile.open(write_sample(tmp_path / "c.gguf", {DRAFT_VOCABULARY: [9, 5]}))


@pytest.mark.parametrize(("weights", "error"), [("F32", 0), ("F16", 0), ("BF16", 0), ("Q8_0", 0.6), ("Q4_1", 2)])
def test_weights_are_dequantised(weights: str, error: float, tmp_path: Path) -> None:
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", weights=weights))
    read = model.weight("token_embd.weight")
    assert read.dtype == np.float32
    assert np.abs(read - EMBEDDING).max() <= error
    assert model.weight("output_norm.weight").tolist() == [1.0] * 32
    with pytest.raises(UsageError, match="has no tensor other"):
        model.weight("other")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"llama.context_length": None}, "does not say its llama.context_length"),
        ({"llama.attention.head_count": 0}, "does not say its llama.attention.head_count"),
        ({"split.count": 3}, "one part of a model in several files"),
        ({"tokenizer.ggml.eos_token_id": [1, 2]}, "tokenizer.ggml.eos_token_id is no token"),
    ],
)
def test_a_file_that_is_no_whole_model_is_refused(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        GgufFile.open(write_sample(tmp_path / "a.gguf", changed))


def test_the_digest_is_of_what_decides_about_the_text(tmp_path: Path) -> None:
    def digest(metadata: dict[str, Any], weights: str = "Q8_0") -> bytes:
        return GgufFile.open(write_sample(tmp_path / f"{uuid4()}.gguf", metadata, weights=weights)).digest

    first = digest({"general.name": "one"})
    assert digest({"general.name": "two"}) == first
    others = [
        digest({}, "Q4_1"),
        digest({"tokenizer.chat_template": "{{ messages }}"}),
        digest({"llama.context_length": 128}),
    ]
    assert len({first, *others}) == 4
