"""A GGUF file as a model and as a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosine_engine import zoo
from cosine_engine.gguf.file import DRAFT_VOCABULARY, GgufFile
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.vocabulary import DraftVocabulary
from cosine_p2p.request.generation_config import read_generation_config
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from tests.cosine_p2p.gguf_samples import EMBEDDING, write_sample

HEAD_SIZE = 8


def test_sizes_are_those_of_the_metadata(tmp_path: Path) -> None:
    model = GgufFile.open(write_sample(tmp_path / "small.gguf"))
    assert (model.architecture, model.name, model.weights) == ("llama", "small", "Q8_0")
    assert (model.vocab_tokens, model.context_tokens) == (4, 64)
    assert model.kv_bytes_per_token(2) == 2 * 2 * 2 * HEAD_SIZE * 2
    assert model.draft_vocabulary is None


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
        ({"split.count": "2"}, "split.count that is no number"),
        ({"split.count": 3, "split.no": 1}, "name the first of its 3 parts"),
    ],
)
def test_a_file_that_is_no_whole_model_is_refused(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        GgufFile.open(write_sample(tmp_path / "a.gguf", changed))


def test_a_target_is_unfolded_under_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "target.gguf"
    write_gguf(zoo.folder("target"), file)
    folder = unfold(file, cache_folder=tmp_path / "cache")
    digest = HeldWeights.read(folder, cache_folder=tmp_path / "hashes").content_digest
    assert folder == tmp_path / "cache" / digest.hex()
    assert digest == GgufFile.open(file).digest
    files = TokenizerFiles.read(folder)
    assert files is not None and files.files.keys() == {
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 1024
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": [0]}
    unfolded = GgufFile.in_folder(folder)
    assert unfolded is not None and unfolded.path.resolve() == file
    assert GgufFile.in_folder(zoo.folder("target")) is None


def test_a_file_that_moved_is_found_again_and_what_was_damaged_repaired(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    write_gguf(zoo.folder("draft-code"), file)
    folder = unfold(file, cache_folder=tmp_path / "cache")
    config = (folder / "config.json").read_bytes()
    (folder / "config.json").write_text("{")
    moved = file.rename(tmp_path / "b.gguf")
    assert unfold(moved, cache_folder=tmp_path / "cache") == folder
    assert (folder / "model.gguf").resolve() == moved
    assert (folder / "config.json").read_bytes() == config
    assert {path.name for path in folder.iterdir()} == {"config.json", "generation_config.json", "model.gguf"}


def test_what_a_file_advises_and_its_reduced_vocabulary_lie_beside_the_weights(tmp_path: Path) -> None:
    advised = {"general.sampling.top_k": 20, "general.sampling.penalty_repeat": 2}
    others = {"llama.feed_forward_length": 64, DRAFT_VOCABULARY: [7, 9]}
    folder = unfold(write_sample(tmp_path / "a.gguf", {**advised, **others}), cache_folder=tmp_path)
    defaults = GenerationDefaults(do_sample=True, top_k=20, repetition_penalty=2.0)
    assert read_generation_config(folder) == defaults
    vocabulary = DraftVocabulary.read(folder)
    assert vocabulary is not None and vocabulary.target_ids == (7, 9)
