"""The vocabulary of a GGUF file: which tokens begin and end texts, by keys, by their texts, and by default."""

from collections.abc import Sequence
from typing import Any

import pytest

from cosine_p2p.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary
from cosine_protocol.errors import UsageError

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]


def vocabulary(*more: str, kind: str = "gpt2", **keys: Any) -> Vocabulary:
    """Twelve words, then `more`."""
    given = {"model": kind, "tokens": [*WORDS, *more], **keys}
    found = Vocabulary.read("a.gguf", {f"tokenizer.ggml.{key}": value for key, value in given.items()})
    assert found is not None
    return found


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
def test_a_file_that_names_no_bos_token_has_that_of_its_kind(
    kind: str, keys: dict[str, Any], bos: str | None
) -> None:
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


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "other"])
def test_other_kinds_are_refused_in_one_sentence(kind: str) -> None:
    with pytest.raises(UsageError, match=f"kind '{kind}', which cannot be read; gpt2, gemma4, llama can be"):
        vocabulary(kind=kind)
