"""Tests of the headers of GGUF files."""

from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGUFReader

from cosine_p2p.gguf.header import BLOCKS, read_header
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import SIZES, write_sample


def test_types_are_those_of_the_package_gguf() -> None:
    assert {name: (weights, size) for name, weights, size in BLOCKS.values()} == {
        kind.name: size for kind, size in GGML_QUANT_SIZES.items()
    }
    assert {number: name for number, (name, _, _) in BLOCKS.items()} == {
        int(kind): kind.name for kind in GGML_QUANT_SIZES
    }


def test_metadata_and_tensors_are_what_the_package_gguf_reads(tmp_path: Path) -> None:
    file = write_sample(tmp_path / "a.gguf", {"general.name": "é", "list": [1, 2, 3], "words": ["a", "ß"]})
    header, other = read_header(file), GGUFReader(str(file))
    assert header.metadata == {key: field.contents() for key, field in other.fields.items() if key[:5] != "GGUF."}
    assert header.metadata.items() >= SIZES.items()
    assert [(t.name, t.kind, t.shape, t.start, t.size_bytes) for t in header.tensors] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()), t.data_offset, t.n_bytes)
        for t in sorted(other.tensors, key=lambda tensor: str(tensor.name))
    ]


def test_the_first_part_of_a_model_stands_for_all(tmp_path: Path) -> None:
    metadata = {"general.name": "a", "list": [1, 2]}
    whole, first = (
        write_sample(tmp_path / "whole.gguf", metadata),
        write_sample(tmp_path / "parted.gguf", metadata, part_tensors=1),
    )
    found = read_header(first)
    assert [part.name for part in found.parts] == ["parted-00001-of-00002.gguf", "parted-00002-of-00002.gguf"]
    assert {tensor.name: tensor.file for tensor in found.tensors} == {
        "token_embd.weight": found.parts[0],
        "output_norm.weight": found.parts[1],
    }
    assert {key: found.metadata[key] for key in metadata} == metadata
    one, other = (HeldWeights.read(file, cache_folder=tmp_path) for file in (first, whole))
    assert one.content_digest == other.content_digest
    link = tmp_path / "model.gguf"
    link.symlink_to(first)
    assert read_header(link).parts == found.parts


def test_parts_that_are_no_whole_model_are_refused_in_one_sentence(tmp_path: Path) -> None:
    first = write_sample(tmp_path / "a.gguf", part_tensors=1)
    second = first.with_name("a-00002-of-00002.gguf")
    with pytest.raises(UsageError, match=r"is only a part of a model; name the first of its 2"):
        read_header(second)
    with pytest.raises(UsageError, match=r"its name must end in -00001-of-00002\.gguf"):
        read_header(first.rename(tmp_path / "b.gguf"))
    (tmp_path / "b.gguf").rename(first)
    other = write_sample(tmp_path / "other.gguf")
    with pytest.raises(UsageError, match="is not part 2 of a-00001-of-00002"):
        read_header(other.rename(second).with_name(first.name))
    second.unlink()
    with pytest.raises(UsageError, match=r"a-00002-of-00002\.gguf is missing, one of the 2 parts"):
        read_header(first)
