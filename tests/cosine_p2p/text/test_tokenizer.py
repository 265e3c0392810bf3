"""Tests that tokenizers give the same tokens as in transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cosine_engine.zoo.family import tokenizer_folder
from cosine_p2p import load_tokenizer
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

TEXTS = ["Once upon a time", "def f(x):\n    return x + 1\n", "日本語 🙂 é", "  two  spaces ", "1 + 1 = 2", "\t"]
CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    read = TokenizerFiles.read(tokenizer_folder())
    assert read is not None
    return read.files


@pytest.fixture(scope="module")
def theirs() -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder())


def test_texts_and_chats_to_tokens_and_back(files: Mapping[str, bytes], theirs: Any) -> None:
    codec = TextTokenizer(files)
    for text in TEXTS:
        tokens = codec.encode(text)
        assert list(tokens) == theirs(text)["input_ids"]
        expected = theirs.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert codec.decode(tokens) == expected
    for chat in CHATS:
        text = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert list(codec.encode_chat(chat)) == theirs(text, add_special_tokens=False)["input_ids"]


def test_files_without_a_tokenizer_and_broken_companions_are_refused(files: Mapping[str, bytes]) -> None:
    vocabularies = (b"not json", b"{}", b"\xff\xfe")
    others = (
        {"tokenizer_config.json": b"{"},
        {"tokenizer_config.json": b"[]"},
        {"chat_template.jinja": b"\xff\xff"},
    )
    for broken in (
        {},
        {"vocab.json": b"{}"},
        *({"tokenizer.json": data} for data in vocabularies),
        *({**files, **changed} for changed in others),
    ):
        with pytest.raises(UsageError):
            TextTokenizer(broken)


def word_level(**parts: Any) -> bytes:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts}).encode()


def test_a_tokenizer_whose_library_panics_is_refused_as_any_other() -> None:
    broken = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(UsageError, match="cannot be read"):
        TextTokenizer({"tokenizer.json": word_level(normalizer=broken)})


def test_a_prompt_is_neither_cut_nor_padded() -> None:
    cut = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    fill = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None}
    pad = {**fill, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    words = word_level(truncation=cut, padding=pad, pre_tokenizer={"type": "Whitespace"})
    assert TextTokenizer({"tokenizer.json": words}).encode("a a a") == (0, 0, 0)


LETTERS = "abcd"
SPECIAL_NAMES = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}|{{ boi_token }}"
NAMES = st.sampled_from(["a", "d", "<x>", "<y>", "<z>", "<in>", "ab"])
FLAGS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), st.booleans())
)
OBJECTS = st.builds(lambda name, flags: {"content": name, **flags}, NAMES, FLAGS)
MARKED = st.builds(lambda name, flags: {"__type": "AddedToken", "content": name, **flags}, NAMES, FLAGS)
USES = st.sampled_from(["bos_token", "eos_token", "pad_token", "image_token"])
CONFIGS = st.builds(
    lambda uses, more: {"tokenizer_class": "PreTrainedTokenizerFast", **uses, **more},
    st.dictionaries(USES, NAMES | MARKED, max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            "added_tokens_decoder": st.dictionaries(st.sampled_from(["3", "4", "5", "9"]), OBJECTS, max_size=3),
            "extra_special_tokens": st.lists(NAMES, max_size=2) | st.dictionaries(st.just("boi_token"), NAMES),
            "additional_special_tokens": st.lists(NAMES, max_size=2),
            "split_special_tokens": st.booleans(),
        },
    ),
)
COMPANIONS = st.fixed_dictionaries(
    {"tokenizer_config.json": CONFIGS},
    optional={
        "special_tokens_map.json": st.dictionaries(USES, NAMES | OBJECTS, max_size=2),
        "added_tokens.json": st.dictionaries(NAMES, st.integers(0, 9), max_size=3),
    },
)


@given(companions=COMPANIONS, text=st.lists(NAMES | st.sampled_from([*LETTERS, " "])).map("".join))
@settings(max_examples=100)
def test_tokens_of_companion_files_are_those_of_transformers(companions: dict[str, Any], text: str) -> None:
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    model: dict[str, Any] = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None}
    tokenizer = Tokenizer.from_str(word_level(model=model).decode())
    tokenizer.add_tokens([AddedToken("<in>", special=False)])
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        for name, value in companions.items():
            Path(folder, name).write_text(json.dumps(value))
        try:
            theirs = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception:  # of whatever class there
            return
        ours = load_tokenizer(folder)
        seen = ours.render_chat(CHATS[0], template=SPECIAL_NAMES)
        assert seen == theirs.apply_chat_template(CHATS[0], chat_template=SPECIAL_NAMES, tokenize=False)
    assert list(ours.encode(text)) == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2TokenizerFast"])
@pytest.mark.parametrize("stated", [{}, {"eos_token": "<|user|>", "unk_token": None}])
def test_classes_of_transformers_name_tokens(
    name: str, stated: dict[str, Any], files: Mapping[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(files["tokenizer.json"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **stated}))
    text = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        CHATS[0], chat_template=SPECIAL_NAMES, tokenize=False
    )
    assert load_tokenizer(tmp_path).render_chat(CHATS[0], template=SPECIAL_NAMES) == text
