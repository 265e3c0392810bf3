"""A GGUF file as a folder: the rest of the node finds there what it reads of other models."""

import json
from pathlib import Path

from cosine_node import zoo
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_p2p.request.generation_config import read_generation_config
from cosine_p2p.text.target import identify_target
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.records import GenerationDefaults
from tests.cosine_p2p.gguf_samples import write_sample


def test_a_target_is_unfolded_under_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "target.gguf"
    write_gguf(zoo.folder("target"), file)
    folder = unfold(file, cache_folder=tmp_path / "cache")
    identity = identify_target(folder, name="x", cache_folder=tmp_path / "hashes")
    assert folder == tmp_path / "cache" / identity.content_digest.hex()
    assert identity.content_digest == GgufFile.open(file).digest
    files = TokenizerFiles.read(folder)
    assert files is not None and identity.tokenizer_digest == files.digest
    assert files.files.keys() == {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
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


def test_what_a_file_advises_is_its_generation_config(tmp_path: Path) -> None:
    advised = {"general.sampling.top_k": 20, "general.sampling.penalty_repeat": 2}
    sizes = {"llama.feed_forward_length": 64}
    folder = unfold(write_sample(tmp_path / "a.gguf", {**advised, **sizes}), cache_folder=tmp_path)
    defaults = GenerationDefaults(do_sample=True, top_k=20, repetition_penalty=2.0)
    assert read_generation_config(folder) == defaults


def test_a_reduced_vocabulary_lies_beside_the_weights(tmp_path: Path) -> None:
    sizes = {"llama.feed_forward_length": 64, "cosine.draft_vocabulary": [7, 9]}
    folder = unfold(write_sample(tmp_path / "a.gguf", sizes), cache_folder=tmp_path)
    vocabulary = DraftVocabulary.read(folder)
    assert vocabulary is not None and vocabulary.target_ids == (7, 9)
