"""A converted tokenizer equals that of transformers, and is cached."""

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cosine_engine.gguf.tokenizer import trial_texts
from cosine_engine.models import tokenizer_conversion
from cosine_engine.models.tokenizer_conversion import convert_tokenizer
from cosine_p2p import load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.tokenizer_kinds import LINES
from tests.thoroughness import THOROUGH, quick_first

TEXTS = trial_texts(["<s>", "</s>", "<tool>", "<|turn|>"])
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "byte pairs": {"model_type": "bpe", "byte_fallback": True},
    "unigram with bytes and no space before": {
        "model_type": "unigram",
        "byte_fallback": True,
        "add_dummy_prefix": False,
    },
    "spaces as they are": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
}
LIBRARY = """
import base64, io, json, sys, sentencepiece
asked = json.load(sys.stdin)
if "model" in asked:
    library = sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(asked["model"]))
    answer = [library.decode(line) if isinstance(line, list) else library.encode(line) for line in asked["lines"]]
else:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(asked["lines"]), model_writer=made, num_threads=1, minloglevel=2, **asked["options"]
    )
    answer = base64.b64encode(made.getvalue()).decode()
json.dump(answer, sys.stdout)
"""
CLASSES: Mapping[str, Mapping[str, Any]] = {
    "by the model's kind": {},
    "as Llama 2": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False},
}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return made


def sentence_piece(**options: Any) -> bytes:
    options = {"vocab_size": 440, "hard_vocab_limit": False, "user_defined_symbols": ["<tool>"], **options}
    return base64.b64decode(by_sentence_piece({"options": options, "lines": LINES * 3}))


def by_sentence_piece(asked: object) -> Any:
    """Run SentencePiece in a child process: together with torch it may crash."""
    pytest.importorskip("sentencepiece", reason="the package sentencepiece is not installed")
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY], input=json.dumps(asked).encode(), capture_output=True, check=True
    )
    return json.loads(done.stdout)


def tiktoken_file() -> bytes:
    """A byte-level BPE in tiktoken's format."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"th", b"the", b" t", b" the", b"in", b"ing", b"12", b"\xf0\x9f", b"  "]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def assert_read_as_by_transformers(folder: Path) -> None:
    convert_tokenizer(folder)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        tokens = ours.encode(text)
        assert list(tokens) == theirs(text)["input_ids"], text
        assert ours.encode(text, add_special_tokens=False) == tuple(
            theirs(text, add_special_tokens=False)["input_ids"]
        )
        expected = theirs.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(tokens) == expected, text
    assert ours.library.get_vocab() == theirs.get_vocab()
    assert ours.named_tokens == {name: str(token) for name, token in theirs.special_tokens_map.items()}


@pytest.mark.parametrize("shape", quick_first(SHAPES))
@pytest.mark.parametrize("kind", quick_first(CLASSES))
def test_a_sentence_piece_model_is_read_as_by_transformers(folder: Path, shape: str, kind: str) -> None:
    (folder / "tokenizer.model").write_bytes(sentence_piece(**SHAPES[shape]))
    if CLASSES[kind]:
        (folder / "tokenizer_config.json").write_text(json.dumps(CLASSES[kind]))
    assert_read_as_by_transformers(folder)


@pytest.mark.thorough
def test_bytes_that_are_no_character_are_decoded_as_by_sentence_piece(folder: Path) -> None:
    model = sentence_piece(**SHAPES["byte pairs"])
    (folder / "tokenizer.model").write_bytes(model)
    convert_tokenizer(folder)
    ours, rng = load_tokenizer(folder), random.Random(0)
    parts = ["日".encode(), "🙂".encode(), b"\xe6\x97", b"\xf0\x9f", b"\xff", b"\x97", b"\xc0\xaf", b"\xed\xa0\x80"]
    vocabulary, (word, *_) = ours.library.get_vocab(), ours.encode("the", add_special_tokens=False)
    runs = [[word], *([vocabulary[f"<0x{byte:02X}>"] for byte in part] for part in parts)]
    lines = [[word, *chain.from_iterable(rng.choices(runs, k=6))] for _ in range(300)]
    theirs = by_sentence_piece({"model": base64.b64encode(model).decode(), "lines": lines})
    assert [ours.decode(line) for line in lines] == theirs


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tokenizer.model", "tiktoken.model"])
def test_a_file_of_tiktokens_is_read_as_by_transformers(folder: Path, name: str) -> None:
    (folder / name).write_bytes(tiktoken_file())
    special = {str(265 + index): {"content": text, "special": True} for index, text in enumerate(("<s>", "</s>"))}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "added_tokens_decoder": special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert_read_as_by_transformers(folder)


def test_what_was_made_is_not_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tiktoken.model").write_bytes(tiktoken_file())
    convert_tokenizer(folder)
    made = TokenizerFiles.read(folder)

    def never(*_: object) -> None:
        raise AssertionError("it was made already")

    monkeypatch.setattr(tokenizer_conversion, "_run_worker", never)
    convert_tokenizer(folder)
    assert TokenizerFiles.read(folder) == made
    # Whatever else a folder has, what was made of other files is not theirs.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(AssertionError):
        convert_tokenizer(folder)


def told(folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        convert_tokenizer(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def code_only(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["a.Own", None]}}))
    (folder / "a.py").write_text("raise SystemExit")


def nonsense(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"\x00\x01 nothing of the kind")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (code_only, "custom code (auto_map) and no tokenizer.json: such code is never run"),
        pytest.param(
            nonsense, "has a tokenizer.model and no tokenizer.json, and it cannot be converted: ", marks=THOROUGH
        ),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_sentence(
    folder: Path, make: Callable[[Path], None], sentence: str
) -> None:
    make(folder)
    assert sentence in told(folder)


@pytest.mark.parametrize(
    ("content", "packages"), [(b"\x0a\x07binary", "sentencepiece protobuf"), (b"YQ== 0\n", "tiktoken")]
)
def test_packages_that_are_missing_are_named(
    folder: Path, content: bytes, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    monkeypatch.setattr(tokenizer_conversion, "distributions", lambda name: ())
    assert f"transformers needs `pip install {packages}`" in told(folder)
    monkeypatch.setattr(tokenizer_conversion, "installed_version", lambda: None)
    assert "to convert it needs transformers" in told(folder)


def test_a_folder_with_a_tokenizer_or_none_is_left_alone(folder: Path) -> None:
    convert_tokenizer(folder)
    assert TokenizerFiles.read(folder) is None
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer.model").write_bytes(b"\x00")
    convert_tokenizer(folder)
    files = TokenizerFiles.read(folder)
    assert files is not None and files.files == {"tokenizer.json": b"{}", "tokenizer.model": b"\x00"}


@pytest.mark.thorough
def test_mistrals_own_file_is_read_as_by_transformers(folder: Path) -> None:
    ranks = [base64.b64decode(line.split()[0]) for line in tiktoken_file().splitlines()]
    special = [{"rank": rank, "token_str": text} for rank, text in enumerate(("<unk>", "<s>", "</s>", "[INST]"))]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ranks)
    ]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "num_vocab_tokens": len(ranks),
        "default_vocab_size": len(ranks) + len(special),
        "default_num_special_tokens": len(special),
        "version": "v3",
    }
    tekken = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(tekken))
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    assert_read_as_by_transformers(folder)
