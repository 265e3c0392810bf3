"""Tests of manifests, and of folders with a part of a model."""

from pathlib import Path

import pytest

from cosine_p2p.text.held_weights import MANIFEST, HeldWeights, is_part_name
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.text.test_target import Tensors, write_safetensors

LONG = bytes(range(256)) * 1025
TENSORS: Tensors = {
    "layers.0": ("U8", [len(LONG)], LONG),
    "layers.1": ("F32", [2], bytes(8)),
    "none": ("F32", [0], b""),
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    folder = tmp_path / "whole"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 4}')
    (folder / "generation_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "readme.json").write_text("not of the model")
    write_safetensors(folder / "model.safetensors", TENSORS)
    return folder


def held(folder: Path) -> HeldWeights:
    return HeldWeights.read(folder, cache_folder=folder.parent / "cache")


@pytest.fixture
def part(whole: Path) -> Path:
    known, folder = held(whole), whole.parent / "part"
    folder.mkdir()
    (folder / MANIFEST).write_bytes(known.encoded)
    for name, data in known.parts.items():
        (folder / name).write_bytes(data)
    write_safetensors(folder / "some.safetensors", {"layers.0": TENSORS["layers.0"]})
    return folder


def test_a_part_has_the_digest_of_the_whole(whole: Path, part: Path) -> None:
    found = held(part)
    assert (found.content_digest, found.is_whole, set(found.tensors)) == (
        held(whole).content_digest,
        False,
        {"layers.0"},
    )


@pytest.mark.parametrize(
    "other",
    [
        {"layers.0": ("U8", [len(LONG)], LONG[1:] + b"\0")},
        {"layers.0": ("U8", [5, len(LONG) // 5], LONG)},
        {"layers.2": TENSORS["layers.0"]},
    ],
)
def test_a_tensor_that_is_another_is_named(part: Path, other: Tensors) -> None:
    write_safetensors(part / "some.safetensors", other)
    with pytest.raises(UsageError, match=r"layers\.[02] in .*some\.safetensors is not what weights\.manifest says"):
        held(part)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_another_or_missing_is_named(part: Path, name: str) -> None:
    (part / name).write_text("other")
    with pytest.raises(UsageError, match=name):
        held(part)
    (part / name).unlink()
    with pytest.raises(UsageError, match=name):
        held(part)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "additional_chat_templates/../x.jinja"])
def test_no_other_file_than_those_of_models_is_a_part(name: str) -> None:
    assert not is_part_name(name)
