"""Tests of vocabularies and tokenizers of GGUF files."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cosine_engine import zoo
from cosine_engine.gguf.writing import write_gguf
from cosine_p2p.gguf.pre_tokenizers import PRE_TOKENIZERS
from cosine_p2p.gguf.tokenizer import files_of, tokenizer_files
from cosine_p2p.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

UNKNOWN, BYTE = 2, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "<tool>"]
SCORES = [-9.0, -9.0, -9.0, -9.0, -2.0, -3.0, -4.0, -1.0, 0.0]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("toy") / "toy.gguf"
    write_gguf(zoo.folder("target"), file)
    return file


@pytest.fixture(scope="module")
def read(toy: Path) -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_files(toy)["tokenizer.json"])


@cache
def own_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))


def keys_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in metadata.items() if value is not None}


def vocabulary_of(metadata: Mapping[str, Any], **others: Any) -> Vocabulary:
    found = Vocabulary.read("a.gguf", keys_of(metadata) | {f"general.{key}": one for key, one in others.items()})
    assert found is not None
    return found


def tokenizer_of(metadata: Mapping[str, Any], **others: Any) -> Tokenizer:
    return Tokenizer.from_buffer(files_of(vocabulary_of(metadata, **others))["tokenizer.json"])


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


def test_the_chat_template_and_the_names_of_special_tokens_come_with_it(toy: Path) -> None:
    files = tokenizer_files(toy)
    config = json.loads(files["tokenizer_config.json"])
    assert {config[name] for name in ("bos_token", "eos_token", "pad_token")} == {"<|endoftext|>"}
    chat = [{"role": "user", "content": "Hello 12"}]
    stored = TokenizerFiles.read(zoo.tokenizer_folder())
    assert stored is not None
    assert TextTokenizer(files).encode_chat(chat) == TextTokenizer(stored.files).encode_chat(chat)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_can_be_read(name: str) -> None:
    assert "".join(tokenizer_of(byte_level(pre=name)).encode("ab", add_special_tokens=False).tokens) == "ab"


def test_letters_are_not_composed_and_capitals_begin_words_where_llama_cpp_has_it_so() -> None:
    letters = ["e", "\u00cc", "\u0123", "A", "aA"]
    tokens = {"tokens": [*byte_level()["tokens"], *letters], "merges": ["a A"], "token_type": None}
    # U+0301 is the bytes CC 81, as letters \u00cc and \u0123.
    composed = tokenizer_of(byte_level(pre="qwen2", **tokens)).encode("e\u0301")
    assert composed.tokens == ["e", "\u00cc", "\u0123"]
    assert tokenizer_of(byte_level(pre="gpt-4o", **tokens)).encode("aA").tokens == ["a", "A"]
    assert tokenizer_of(byte_level(pre="gpt-2", **tokens)).encode("aA").tokens == ["aA"]


def test_llama_3_takes_whole_words_first_and_begins_texts() -> None:
    assert tokenizer_of(byte_level(pre="llama-bpe")).encode("aab").tokens == ["<end>", "aab"]
    assert tokenizer_of(byte_level()).encode("aab").tokens == ["a", "ab"]


@pytest.mark.parametrize(("begins", "ends"), [(True, False), (False, True)])
def test_texts_begin_and_end_as_the_file_says(begins: bool, ends: bool) -> None:
    added = {"add_bos_token": int(begins), "add_eos_token": int(ends)}
    tokens = tokenizer_of(byte_level(**added)).encode("b").tokens
    assert tokens == ["<end>"] * begins + ["b"] + ["<end>"] * ends


def test_pieces_merge_by_score_and_other_letters_are_bytes() -> None:
    read = tokenizer_of(sentence_piece())
    # The highest score first: "bc" before "ab", where both could be.
    assert read.encode("abc").tokens == ["<s>", "▁a", "bc"]
    assert read.encode("ab").tokens == ["<s>", "▁ab"]
    assert read.encode("é<tool>a").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>", "<tool>", "▁a"]
    assert read.decode(read.encode("ab c é").ids) == "ab c é"


def test_phi_3_takes_white_space_after_control_tokens_away() -> None:
    def tokens(**others: Any) -> list[str | None]:
        read = tokenizer_of(sentence_piece(), **others)
        return [read.id_to_token(token) for token in read.encode("a</s> \n b").ids]

    assert tokens(name="Phi-3 mini") == ["<s>", "▁a", "</s>", "▁", "b"]
    assert tokens() == ["<s>", "▁a", "</s>", "▁", "▁", "<0x0A>", "▁", "b"]


def test_pieces_with_merges_have_a_letter_for_spaces_and_tokens_for_bytes() -> None:
    tokens = ["<bos>", *BYTES, "a", "▁", "▁a", "\n", "\n\n"]
    kinds = [CONTROL, *[BYTE] * len(BYTES), *[NORMAL] * 5]
    changed = {"model": "gemma4", "tokens": tokens, "merges": ["▁ a", "\n \n"], "token_type": kinds}
    read = tokenizer_of(byte_level(**changed))
    found = read.encode("a a\n\n\né")
    assert found.tokens == ["<bos>", "a", "▁a", "\n\n", "\n", "<0xC3>", "<0xA9>"]
    assert read.decode(found.ids) == "a a\n\n\né"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"model": "bert"}, "tokenizer of the kind 'bert'"),
        ({"pre": "other"}, "splits texts in the way 'other'"),
        ({"tokens": None}, "has no list of its tokens"),
        ({"merges": ["a x"]}, "a tokenizer that makes no sense"),
        ({"model": "llama"}, "has no list of its scores"),
        ({"token_type": [1, 1]}, "has no list of its token_type"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        tokenizer_of(byte_level(**metadata))


TOKENS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]


def vocabulary(*more: str, kind: str = "gpt2", **keys: Any) -> Vocabulary:
    """Twelve words, then `more`."""
    return vocabulary_of({"model": kind, "tokens": [*TOKENS, *more], **keys})


def texts_of(found: Vocabulary, tokens: Sequence[int]) -> list[str]:
    return [found.tokens[token] for token in tokens]


def test_ends_are_what_keys_name_and_then_what_texts_say() -> None:
    found = vocabulary("<|im_end|>", "<|endoftext|>", eos_token_id=13, eot_token_id=3, eom_token_id=13)
    assert texts_of(found, found.ends) == ["<|endoftext|>", "d", "<|im_end|>"]
    assert [found.kinds[token] for token in (11, 12, 13)] == [NORMAL, CONTROL, CONTROL]


@pytest.mark.parametrize("more", [("a",), ("", "[EMPTY_12]")])
def test_a_token_stands_once(more: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"a\.gguf has the token .* twice in tokenizer\.ggml\.tokens"):
        vocabulary(*more)


def test_a_message_of_several_channels_does_not_end_at_its_first() -> None:
    found = vocabulary("<|end|>", "<|return|>", "<|call|>", "<|channel|>", eos_token_id=13)
    assert texts_of(found, found.ends) == ["<|return|>", "<|call|>"]
    assert [found.kinds[token] for token in (12, 15)] == [USER_DEFINED, USER_DEFINED]
    beside = vocabulary("</s>", "<|tool_response>", "<eos>", eos_token_id=14)
    assert texts_of(beside, beside.ends) == ["<eos>", "<|tool_response>"]
    assert beside.kinds[12] == NORMAL


@pytest.mark.parametrize(
    ("kind", "keys", "bos"),
    [
        ("gpt2", {}, "l"),
        ("llama", {}, "b"),
        ("gemma4", {}, None),
        ("gpt2", {"pre": "glm4"}, None),
        ("gpt2", {"bos_token_id": 2}, "c"),
        # No token: as if it were not named.
        ("gpt2", {"bos_token_id": 99}, "l"),
    ],
)
def test_a_file_without_a_bos_token_has_that_of_its_kind(kind: str, keys: dict[str, Any], bos: str | None) -> None:
    assert vocabulary(kind=kind, **keys).text_of("bos") == bos


@pytest.mark.parametrize(
    ("kind", "keys", "begins"),
    [
        ("llama", {}, True),
        ("llama", {"add_bos_token": False}, False),
        ("gpt2", {"pre": "gpt-2"}, False),
        ("gpt2", {"pre": "gpt-2", "add_bos_token": True}, True),
        ("gpt2", {"pre": "llama-bpe"}, True),
        ("gpt2", {"pre": "tekken"}, True),
        ("gpt2", {"pre": "tekken", "add_bos_token": False}, False),
        # llama.cpp begins Gemma's texts though files say otherwise.
        ("gemma4", {"add_bos_token": False, "bos_token_id": 2}, True),
        ("gpt2", {"pre": "glm4", "add_bos_token": True}, False),
    ],
)
def test_texts_begin_by_key_by_kind_and_by_pre_tokenizer(kind: str, keys: dict[str, Any], begins: bool) -> None:
    assert vocabulary(kind=kind, **keys).begins_texts is begins
