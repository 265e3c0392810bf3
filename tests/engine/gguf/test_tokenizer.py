"""The tokenizer of a served GGUF file equals llama.cpp's."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cosine_engine import zoo
from cosine_engine.gguf import tokenizer
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.tokenizer import llama_tokens, tokenizer_files, tried
from cosine_engine.gguf.writing import write_gguf
from cosine_p2p.gguf.header import read_header
from cosine_p2p.gguf.pre_tokenizers import PRE_TOKENIZERS
from cosine_p2p.gguf.tokenizer import files_of
from cosine_p2p.gguf.vocabulary import Vocabulary
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import write_sample
from tests.thoroughness import quick_first


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("toy") / "toy.gguf"
    write_gguf(zoo.folder("target"), file)
    found = read_header(file).metadata
    return {key: value for key, value in found.items() if key.startswith("tokenizer.")}


def vocabulary_of(metadata: dict[str, Any], **keys: object) -> Vocabulary:
    found = Vocabulary.read("a.gguf", metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    assert found is not None
    return found


def tokens_of(vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
    read = Tokenizer.from_buffer(files_of(vocabulary)["tokenizer.json"])
    return [read.encode(text).ids for text in texts]


def test_a_tokenizer_of_other_tokens_is_refused(metadata: dict[str, Any]) -> None:
    vocabulary = vocabulary_of(metadata, pre="qwen2")
    same = tried(vocabulary, Path("a.gguf"), lambda _, texts: tokens_of(vocabulary, texts))
    assert same == vocabulary
    other = vocabulary_of(metadata, pre="gpt-2")
    with pytest.raises(UsageError, match=r"a\.gguf cannot be served: llama\.cpp has other tokens for '.*'"):
        tried(vocabulary, Path("a.gguf"), lambda _, texts: tokens_of(other, texts))


@pytest.mark.parametrize("name", ["llama-bpe", "dbrx", "deepseek-v3"])
def test_an_unknown_name_is_read_in_the_known_way_that_gives_the_tokens(
    name: str, metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {key: value for key, value in metadata.items() if not key.endswith("add_bos_token")}
    known = vocabulary_of(metadata, pre=name)
    with caplog.at_level(logging.WARNING):
        found = tried(vocabulary_of(metadata, pre="new"), Path(), lambda _, texts: tokens_of(known, texts))
    assert PRE_TOKENIZERS[found.pre_tokenizer_name] == PRE_TOKENIZERS[name]
    assert "unknown pre-tokenizer 'new'" in caplog.text and f"it equals {name!r}" in caplog.text
    assert files_of(found) == files_of(known)


def test_a_name_that_no_known_way_fits_is_refused(metadata: dict[str, Any]) -> None:
    vocabulary = vocabulary_of(metadata, pre="new")
    with pytest.raises(UsageError, match="unknown pre-tokenizer 'new'; a newer version"):
        tried(vocabulary, Path(), lambda _, texts: [[1]] * len(texts))
    late = iter([0.0, 1e9])
    known = vocabulary_of(metadata, pre="default")
    with pytest.raises(UsageError, match="a newer version"):
        tried(vocabulary, Path(), lambda _, texts: tokens_of(known, texts), clock=lambda: next(late))


def test_where_llama_cpp_tells_nothing_a_known_name_is_believed(metadata: dict[str, Any]) -> None:
    def silent(file: Path, texts: Sequence[str]) -> list[list[int]]:
        raise UsageError("it stopped")

    vocabulary = vocabulary_of(metadata, pre="qwen2")
    assert tried(vocabulary, Path(), silent) == vocabulary
    with pytest.raises(UsageError, match="'new', which is not known here; those known are default, gpt-2"):
        tried(vocabulary_of(metadata, pre="new"), Path(), silent)


def test_what_was_tried_is_remembered(
    metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GgufFile.open(write_sample(tmp_path / "a.gguf", metadata | {"tokenizer.ggml.pre": "new"}))
    asked = []

    def counted(file: Path, texts: Sequence[str]) -> list[list[int]]:
        asked.append(file)
        return tokens_of(vocabulary_of(metadata, pre="qwen2"), texts)

    monkeypatch.setattr(tokenizer, "llama_tokens", counted)
    monkeypatch.setattr(tokenizer, "version", lambda name: "1")
    first = tokenizer_files(model, cache_folder=tmp_path / "cache")
    assert tokenizer_files(model, cache_folder=tmp_path / "cache") == first
    assert len(asked) == 1
    monkeypatch.setattr(tokenizer, "version", lambda name: "2")
    assert tokenizer_files(model, cache_folder=tmp_path / "cache") == first
    assert len(asked) == 2


WAYS = {way: name for name, way in PRE_TOKENIZERS.items()}
NAMES = [*WAYS.values(), *(name for name in PRE_TOKENIZERS if name not in WAYS.values())]


@pytest.mark.parametrize("name", quick_first(NAMES, checked=len(WAYS)))
def test_llama_cpp_gives_the_same_tokens(name: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] if PRE_TOKENIZERS[name].has_pieces else []
    tokens = [*metadata["tokenizer.ggml.tokens"], *pieces]
    kinds = [*metadata["tokenizer.ggml.token_type"], *[6] * len(pieces)]
    changed = {"pre": name, "tokens": tokens, "token_type": kinds, "add_bos_token": None}
    keys = metadata | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    file = write_sample(tmp_path / "a.gguf", keys, has_weights=False)
    vocabulary = Vocabulary.read(str(file), read_header(file).metadata)
    assert vocabulary is not None
    assert tried(vocabulary, file, llama_tokens) == vocabulary


def test_a_vocabulary_that_llama_cpp_refuses_or_stops_at_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    file = write_sample(tmp_path / "a.gguf", {"tokenizer.ggml.model": "other"})
    with pytest.raises(UsageError, match="unknown tokenizer"):
        llama_tokens(file, ["a"])
    monkeypatch.setattr("cosine_engine.processes.answer.LLAMA_PROCESS", "no.such.module")
    with pytest.raises(UsageError, match=r"llama\.cpp crashed"):
        llama_tokens(file, ["a"])
    monkeypatch.setattr(tokenizer, "LLAMA_TIMEOUT_S", 0.0)
    with pytest.raises(UsageError, match="within 0 s"):
        llama_tokens(file, ["a"])
