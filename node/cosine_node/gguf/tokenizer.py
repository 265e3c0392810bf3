"""The tokenizer of a GGUF file as the files that tokenizers of transformers are saved as.

Byte-level BPE (`gpt2`), and BPE of SentencePiece with byte fallback (`llama`). Both give the tokens that llama.cpp
gives: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.pre_tokenizers import PRE_TOKENIZERS, JsonObject
from cosine_p2p.text.tokenizer import failures_as
from cosine_protocol.errors import UsageError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Of ggml's types of tokens those that are no part of plain texts, or that no merge makes."""
WHOLE_WORDS_FIRST: Final = PRE_TOKENIZERS["llama-bpe"]
"""The pre-tokenizer of the models whose words are taken whole where they are in the vocabulary."""
BEGINS_BY_ITSELF: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""The pre-tokenizers with which a text begins with the BOS token unless a file says otherwise, as in llama.cpp."""
SPACE: Final = "▁"
"""SentencePiece's letter for a space."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The metadata of a tokenizer: all lists are by token id."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    @property
    def ids(self) -> dict[str, int]:
        """The token of each text; of several with one text the last, as llama.cpp has it."""
        return {text: token for token, text in enumerate(self.tokens)}

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def text_of(self, name: str) -> str | None:
        """The text of a special token, by the name of its key, such as `bos`."""
        token = self.get(f"{name}_token_id")
        return self.tokens[token] if isinstance(token, int) and 0 <= token < len(self.tokens) else None


def tokenizer_files(model: GgufFile) -> dict[str, bytes]:
    """The tokenizer files of a model, by name; none for one whose tokens have no texts of their own.

    Raises `UsageError` for a tokenizer of another kind.
    """
    kind = model.metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return {}
    tokens = _list(model, "tokens", str)
    # A file may leave the types out: then all tokens are normal ones.
    has_kinds = "tokenizer.ggml.token_type" in model.metadata
    vocabulary = _Vocabulary(
        tokens, _list(model, "token_type", int, len(tokens)) if has_kinds else (), model.metadata
    )
    if kind == "gpt2":
        tokenizer = _byte_level(vocabulary, model)
    elif kind == "llama":
        tokenizer = _sentence_piece(vocabulary, model)
    else:
        raise UsageError(
            f"{model.path} has a tokenizer of the kind {kind!r}, which cannot be read; gpt2 and llama can be."
        )
    text = json.dumps(tokenizer, ensure_ascii=False)
    with failures_as(UsageError, f"{model.path} has a tokenizer that makes no sense."):
        Tokenizer.from_str(text)
    files = {
        "tokenizer.json": text.encode(),
        "tokenizer_config.json": json.dumps(_config(vocabulary, model)).encode(),
    }
    template = model.metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template.encode()
    return files


def _list(model: GgufFile, key: str, kind: type, length: int | None = None) -> list[Any]:
    """A list of the tokenizer's metadata; raises `UsageError` for anything else."""
    found = model.metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(found, list) and all(isinstance(item, kind) for item in found) and length in (None, len(found)):
        return found
    raise UsageError(f"{model.path} has no list of its {key}; fetch it again.")


def _byte_level(vocabulary: _Vocabulary, model: GgufFile) -> JsonObject:
    name = str(vocabulary.get("pre", "default"))
    if name not in PRE_TOKENIZERS:
        raise UsageError(
            f"{model.path} splits texts in the way {name!r}, which is not known here; those known are "
            f"{', '.join(PRE_TOKENIZERS)}."
        )
    merges = _list(model, "merges", str)
    takes_whole_words = PRE_TOKENIZERS[name] == WHOLE_WORDS_FIRST
    return _tokenizer(
        vocabulary,
        model={
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": takes_whole_words,
            "vocab": vocabulary.ids,
            # No token of byte-level BPE has a space in it, so that the first one parts the two.
            "merges": [merge.split(" ", 1) for merge in merges],
        },
        # Of all models with these pre-tokenizers only Qwen's compose letters and accents first.
        normalizer={"type": "NFC"} if name == "qwen2" else None,
        pre_tokenizer=PRE_TOKENIZERS[name],
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        begins=vocabulary.get("add_bos_token", name in BEGINS_BY_ITSELF),
    )


def _sentence_piece(vocabulary: _Vocabulary, model: GgufFile) -> JsonObject:
    scores = _list(model, "scores", float, len(vocabulary.tokens))
    has_prefix = vocabulary.get("add_space_prefix", True)
    steps: list[JsonObject] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders: list[JsonObject] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer(
        vocabulary,
        model={
            "unk_token": vocabulary.text_of("unknown"),
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.ids,
            "merges": merges_by_score(vocabulary.tokens, scores),
        },
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        begins=vocabulary.get("add_bos_token", True),
    )


def merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens whose join is a token, the highest score of the join first: SentencePiece's order."""
    known = frozenset(tokens)
    # A token of a megabyte can be cut at a million places, but few tokens have so many lengths.
    lengths = sorted(set(map(len, tokens)) - {0})
    ranked = sorted(range(len(tokens)), key=lambda token: -scores[token])
    return [
        (tokens[token][:cut], tokens[token][cut:])
        for token in ranked
        for cut in lengths[: bisect_left(lengths, len(tokens[token]))]
        if tokens[token][:cut] in known and tokens[token][cut:] in known
    ]


def _tokenizer(
    vocabulary: _Vocabulary,
    *,
    model: JsonObject,
    normalizer: JsonObject | None,
    pre_tokenizer: JsonObject | None,
    decoder: JsonObject,
    begins: bool,
) -> JsonObject:
    """A tokenizer.json."""
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": vocabulary.tokens[token], **common, "special": kind != USER_DEFINED}
            for token, kind in enumerate(vocabulary.kinds)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(vocabulary, begins=begins),
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
        | model,
    }


def _post_processor(vocabulary: _Vocabulary, *, begins: bool) -> JsonObject | None:
    """Adds the tokens that begin and end every text; None where there are none."""
    first = vocabulary.text_of("bos") if begins else None
    last = vocabulary.text_of("eos") if vocabulary.get("add_eos_token", False) else None
    if first is None and last is None:
        return None

    def around(letter: str, type_id: int) -> list[JsonObject]:
        text: JsonObject = {"Sequence": {"id": letter, "type_id": type_id}}
        before, after = (
            [{"SpecialToken": {"id": name, "type_id": type_id}}] if name else [] for name in (first, last)
        )
        return [*before, text, *after]

    ids = vocabulary.ids
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (first, last) if name is not None
        },
    }


def _config(vocabulary: _Vocabulary, model: GgufFile) -> JsonObject:
    """A tokenizer_config.json."""
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    texts = {name: vocabulary.text_of(key) for name, key in keys.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.context_tokens,
        **{name: text for name, text in texts.items() if text is not None},
    }
