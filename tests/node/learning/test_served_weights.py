"""Which drafters can learn, and the files that a version is served from."""

import json
import shutil
from pathlib import Path

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.learning import served_weights
from cosine_node.learning.served_weights import (
    GGUF_FOLDER,
    add_what_serves,
    check_can_learn,
    gguf_kind,
    serving_folder,
)
from cosine_p2p.text.target import GGUF_LINK
from cosine_protocol.errors import UsageError

ENGINE = ScriptedEngine(model_seed=1, vocab_tokens=64)


def version_of(name: str, folder: Path) -> Path:
    """A version as a round leaves it: config and weights."""
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copyfile(zoo.folder(name) / file, folder / file)
    return folder


def test_a_folder_of_weights_can_learn() -> None:
    folder = zoo.folder("draft-code")
    assert check_can_learn("zoo:draft-code", folder, ENGINE) == folder
    assert gguf_kind(folder) is None


def test_no_weights_cannot() -> None:
    with pytest.raises(UsageError, match="ngram has no weights"):
        check_can_learn("ngram", None, ENGINE)


def test_a_gguf_file_that_cannot_be_written_anew_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unfold(zoo.location("smol-code"), cache_folder=tmp_path)
    assert check_can_learn("zoo:smol-code", folder, ENGINE) == folder
    assert gguf_kind(folder) == "Q5_1"
    monkeypatch.setattr(served_weights, "FILE_TYPES", {"F16": 1})
    with pytest.raises(UsageError, match="GGUF file of llama in Q5_1"):
        check_can_learn("zoo:smol-code", folder, ENGINE)


def test_a_version_is_served_from_its_safetensors(tmp_path: Path) -> None:
    version, shipped = version_of("draft-code", tmp_path / "0001"), zoo.folder("draft-code")
    add_what_serves(version, shipped, kind=None)
    assert serving_folder(version) == version
    assert (version / "generation_config.json").read_bytes() == (shipped / "generation_config.json").read_bytes()
    add_what_serves(version, shipped, kind=None)


def test_or_from_a_gguf_file_of_the_kind_it_began_with(tmp_path: Path) -> None:
    version = version_of("draft-code", tmp_path / "0001")
    add_what_serves(version, zoo.folder("draft-code"), kind="Q8_0")
    folder = serving_folder(version)
    assert folder == version / GGUF_FOLDER
    file = GgufFile.in_folder(folder)
    assert file is not None and (file.weights, file.path.name) == ("Q8_0", GGUF_LINK)
    assert json.loads((folder / "config.json").read_text()) == json.loads((version / "config.json").read_text())
    assert file.vocab_tokens == json.loads((version / "config.json").read_text())["vocab_size"]
