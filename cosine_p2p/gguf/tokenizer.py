"""The tokenizer of a GGUF file as files of transformers.

Byte-level BPE (`gpt2`), BPE over pieces with byte fallback (`gemma4`), and SentencePiece (`llama`), all with the
tokens of llama.cpp: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cosine_p2p.gguf.header import read_header
from cosine_p2p.gguf.pre_tokenizers import JsonObject, PreTokenizer
from cosine_p2p.gguf.vocabulary import APART, PIECES, USER_DEFINED, Vocabulary
from cosine_protocol.errors import UsageError

SPACE: Final = "▁"  # SentencePiece's letter for a space.
SPACES_STRIPPED: Final = ("phi-3", "phi3")  # llama.cpp strips white space after control tokens of these models.
SPACES_KEPT: Final = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_files(path: Path) -> dict[str, bytes]:
    """Return the tokenizer files of a GGUF file, by name; none if its tokens have no texts. Raises `UsageError`."""
    vocabulary = Vocabulary.read(str(path), read_header(path).metadata)
    return {} if vocabulary is None else files_of(vocabulary)


def files_of(vocabulary: Vocabulary) -> dict[str, bytes]:
    if vocabulary.kind == PIECES:
        tokenizer = _sentence_piece(vocabulary)
    else:
        tokenizer = _byte_pairs(vocabulary, vocabulary.pre_tokenizer)
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(_config(vocabulary)).encode(),
    }
    template = vocabulary.metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = _template(vocabulary, template).encode()
    return files


def _byte_pairs(vocabulary: Vocabulary, pre_tokenizer: PreTokenizer) -> JsonObject:
    ids, has_pieces = vocabulary.ids, pre_tokenizer.has_pieces
    # A merge may begin with a space, but not with an empty part.
    cuts = [(merge, merge.find(" ", 1)) for merge in vocabulary.list_of("merges", str)]
    merges = [(merge[:cut], merge[cut + 1 :]) for merge, cut in cuts]
    for (merge, cut), (left, right) in zip(cuts, merges, strict=True):
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            raise UsageError(
                f"{vocabulary.source} has a tokenizer that makes no sense: no tokens merge as {merge!r}."
            )
    return _tokenizer(
        vocabulary,
        model={
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": has_pieces,
            "ignore_merges": pre_tokenizer.takes_whole_words,
            "vocab": ids,
            "merges": merges,
        },
        normalizer=_space_as_letter() if has_pieces else None,
        pre_tokenizer=word_steps(pre_tokenizer),
        decoder={"type": "Sequence", "decoders": _piece_decoders()}
        if has_pieces
        else {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )


def word_steps(pre_tokenizer: PreTokenizer) -> JsonObject:
    steps: list[JsonObject] = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in pre_tokenizer.expressions
    ]
    if not pre_tokenizer.has_pieces:
        byte_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        steps.append(byte_letters)
    return {"type": "Sequence", "pretokenizers": steps}


def _sentence_piece(vocabulary: Vocabulary) -> JsonObject:
    scores = vocabulary.list_of("scores", float, len(vocabulary.tokens))
    has_prefix = vocabulary.get("add_space_prefix", True)
    steps, decoders = [_space_as_letter()], _piece_decoders()
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
    )


def _space_as_letter() -> JsonObject:
    return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


def _piece_decoders() -> list[JsonObject]:
    letter_as_space = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return [letter_as_space, {"type": "ByteFallback"}, {"type": "Fuse"}]


def merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of tokens whose join is a token, by the score of the join, as SentencePiece does."""
    known = frozenset(tokens)
    # Cuts are tried only at lengths of tokens: a token may have a megabyte.
    lengths = sorted(set(map(len, tokens)) - {0})
    ranked = sorted(range(len(tokens)), key=lambda token: -scores[token])
    return [
        (tokens[token][:cut], tokens[token][cut:])
        for token in ranked
        for cut in lengths[: bisect_left(lengths, len(tokens[token]))]
        if tokens[token][:cut] in known and tokens[token][cut:] in known
    ]


def _tokenizer(
    vocabulary: Vocabulary,
    *,
    model: JsonObject,
    normalizer: JsonObject | None,
    pre_tokenizer: JsonObject | None,
    decoder: JsonObject,
) -> JsonObject:
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    strips = any(part in name for part in SPACES_STRIPPED)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and text not in SPACES_KEPT,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
            if kind in APART
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(vocabulary),
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
        | model,
    }


def _post_processor(vocabulary: Vocabulary) -> JsonObject | None:
    first = vocabulary.text_of("bos") if vocabulary.begins_texts else None
    last = vocabulary.text_of("eos") if vocabulary.ends_texts else None
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


def _config(vocabulary: Vocabulary) -> JsonObject:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    # Readers treat tokens that are named here as special, so ordinary tokens are left out.
    tokens = {name: vocabulary.special(key) for name, key in keys.items()}
    texts = {name: vocabulary.tokens[token] for name, token in tokens.items() if vocabulary.is_apart(token)}
    context_tokens = vocabulary.metadata.get(f"{vocabulary.metadata.get('general.architecture')}.context_length")
    sizes = {"model_max_length": context_tokens} if isinstance(context_tokens, int) else {}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **sizes, **texts}


def _template(vocabulary: Vocabulary, template: str) -> str:
    """Return the chat template, with the tokens around every text if it lacks them, as llama.cpp adds them."""
    bos = vocabulary.special("bos") if vocabulary.begins_texts else None
    eos = vocabulary.special("eos") if vocabulary.ends_texts else None
    first, last = (
        json.dumps(vocabulary.tokens[token], ensure_ascii=False) if vocabulary.is_apart(token) else None
        for token in (bos, eos)
    )
    if first is None and last is None:
        return template
    # Line ends after a tag and at the end of a template are no text.
    template = template.removesuffix("\n").removesuffix("\r")
    before = f"{{% if not rendered_chat.startswith({first}) %}}{{{{ {first} }}}}{{% endif %}}" if first else ""
    after = f"{{% if not rendered_chat.endswith({last}) %}}{{{{ {last} }}}}{{% endif %}}" if last else ""
    return f"{{% set rendered_chat %}}\n{template}{{%+ endset %}}{before}{{{{ rendered_chat }}}}{after}"
