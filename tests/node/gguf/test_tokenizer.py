"""Tokenizers of GGUF files: byte-level BPE and SentencePiece BPE, as llama.cpp would split texts."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.pre_tokenizers import PRE_TOKENIZERS
from cosine_node.gguf.tokenizer import tokenizer_files
from cosine_node.gguf.writing import write_gguf
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.gguf_samples import write_sample

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
ARCHITECTURE = {"general.architecture": "llama"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "<tool>"]
SCORES = [-9.0, -9.0, -9.0, -9.0, -2.0, -3.0, -4.0, -1.0, 0.0]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    file = tmp_path_factory.mktemp("toy") / "toy.gguf"
    write_gguf(zoo.folder("target"), file)
    return GgufFile.open(file)


@pytest.fixture(scope="module")
def read(toy: GgufFile) -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_files(toy)["tokenizer.json"])


@cache
def own_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))


def tokenizer_of(metadata: Mapping[str, Any], folder: Path) -> Tokenizer:
    keys = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    model = GgufFile.open(write_sample(folder / "a.gguf", keys))
    return Tokenizer.from_buffer(tokenizer_files(model)["tokenizer.json"])


def byte_level(**changed: Any) -> dict[str, Any]:
    tokens = ["<end>", "a", "b", "1", "2", "Ġ", "ab", "Ġa", "12", "aab"]
    given: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [CONTROL] + [NORMAL] * (len(tokens) - 1),
        "merges": ["Ġ a", "a b", "1 2"],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return given | changed


def sentence_piece(**changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *BYTES, *WORDS],
        "scores": [0.0] * (3 + len(BYTES)) + SCORES,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * len(BYTES), *[NORMAL] * 8, USER_DEFINED],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return given | changed


@given(text=st.text() | st.sampled_from(["<|user|>12 Größe\n\n", "it's 3½ 日本  x"]))
def test_a_models_own_tokenizer_comes_back(text: str, read: Tokenizer) -> None:
    assert read.encode(text).ids == own_tokenizer().encode(text).ids
    assert read.decode(read.encode(text).ids) == own_tokenizer().decode(own_tokenizer().encode(text).ids)


def test_the_chat_template_and_the_names_of_special_tokens_come_with_it(toy: GgufFile) -> None:
    files = tokenizer_files(toy)
    config = json.loads(files["tokenizer_config.json"])
    assert {config[name] for name in ("bos_token", "eos_token", "pad_token")} == {"<|endoftext|>"}
    chat = [{"role": "user", "content": "Hello 12"}]
    stored = TokenizerFiles.read(zoo.tokenizer_folder())
    assert stored is not None
    assert TextTokenizer(files).encode_chat(chat) == TextTokenizer(stored.files).encode_chat(chat)


def test_tokens_without_texts_have_no_files(tmp_path: Path) -> None:
    write_gguf(zoo.folder("draft-code"), tmp_path / "a.gguf")
    assert tokenizer_files(GgufFile.open(tmp_path / "a.gguf")) == {}


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_numbers_are_split_as_the_pre_tokenizer_says(name: str, tmp_path: Path) -> None:
    tokens = tokenizer_of(byte_level(pre=name), tmp_path).encode("12", add_special_tokens=False).tokens
    splits_digits = name in {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
    splits_digits |= name in {"qwen2", "deepseek-r1-qwen", "stablelm2"}
    assert tokens == (["1", "2"] if splits_digits else ["12"])


def test_llama_3_takes_whole_words_first_and_begins_texts(tmp_path: Path) -> None:
    assert tokenizer_of(byte_level(pre="llama-bpe"), tmp_path).encode("aab").tokens == ["<end>", "aab"]
    assert tokenizer_of(byte_level(), tmp_path).encode("aab").tokens == ["a", "ab"]


@pytest.mark.parametrize(("begins", "ends"), [(False, False), (True, False), (False, True), (True, True)])
def test_texts_begin_and_end_as_the_file_says(begins: bool, ends: bool, tmp_path: Path) -> None:
    added = {"add_bos_token": int(begins), "add_eos_token": int(ends)}
    tokens = tokenizer_of(byte_level(**added), tmp_path).encode("b").tokens
    assert tokens == ["<end>"] * begins + ["b"] + ["<end>"] * ends


def test_pieces_merge_by_score_and_other_letters_are_bytes(tmp_path: Path) -> None:
    read = tokenizer_of(sentence_piece(), tmp_path)
    # The highest score first: "bc" before "ab", where both could be.
    assert read.encode("abc").tokens == ["<s>", "▁a", "bc"]
    assert read.encode("ab").tokens == ["<s>", "▁ab"]
    assert read.encode("é<tool>a").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>", "<tool>", "▁a"]
    assert read.decode(read.encode("ab c é").ids) == "ab c é"


def test_a_space_before_texts_can_be_switched_off(tmp_path: Path) -> None:
    read = tokenizer_of(sentence_piece(add_space_prefix=0), tmp_path)
    assert read.encode("ab a").tokens == ["<s>", "ab", "▁a"]
    assert read.decode(read.encode("ab a").ids) == "ab a"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"model": "bert"}, "tokenizer of the kind 'bert'"),
        ({"pre": "other"}, "splits texts in the way 'other'"),
        ({"tokens": None}, "has no list of its tokens"),
        ({"merges": None}, "has no list of its merges"),
        ({"merges": ["a x"]}, "a tokenizer that makes no sense"),
        ({"merges": ["ab"]}, "a tokenizer that makes no sense"),
        ({"model": "llama"}, "has no list of its scores"),
        ({"token_type": [1, 1]}, "has no list of its token_type"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(metadata: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        tokenizer_of(byte_level(**metadata), tmp_path)


ANYTHING = st.one_of(
    st.none(), st.integers(0, 9), st.text(max_size=3), st.lists(st.text(max_size=3)), st.lists(st.integers(0, 9))
)


@given(key=st.sampled_from(sorted(byte_level())), value=ANYTHING, is_spm=st.booleans())
def test_no_metadata_raise_anything_else(key: str, value: Any, is_spm: bool) -> None:
    metadata = (sentence_piece() if is_spm else byte_level()) | {key: value}
    keys = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    try:
        tokenizer_files(GgufFile(Path("a.gguf"), keys | {"llama.context_length": 9, **ARCHITECTURE}, {}))
    except UsageError as error:
        assert "a.gguf" in str(error)
