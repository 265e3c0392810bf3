"""Special tokens of the files next to a tokenizer.json.

Read as in transformers 5.24 (`PreTrainedTokenizerBase._from_pretrained`, `TokenizersBackend.__init__`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from cosine_protocol.fields import MAX_TOKEN_ID

CONFIG: Final = "tokenizer_config.json"
STANDARD: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The standard names; others also end in `_token`, or are in `extra_special_tokens`."""
_EXTRA: Final = "extra_special_tokens"
_NUMBERED: Final = "added_tokens_decoder"
_ENDS: Final = "<|endoftext|>"
CLASS_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("GPT2Tokenizer", "GPT2TokenizerFast"), dict.fromkeys(STANDARD[:3], _ENDS)),
    **dict.fromkeys(
        ("Qwen2Tokenizer", "Qwen2TokenizerFast"), dict.fromkeys(("eos_token", "unk_token", "pad_token"), _ENDS)
    ),
}
"""Defaults of transformers' classes for keys that the config lacks (null is no default)."""
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_json_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return the object in a file, empty without the file. Raises `ValueError` or `RecursionError`."""
    try:
        value = json.loads(files.get(name, b"{}").decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds no object")
    return value


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens; `named` has their texts by use, for chat templates.

    `stated` replaces the tokenizer's flags, unless None. `missing` tokens are added if the tokenizer lacks them.
    With `are_split` special tokens in a text are read as text.
    """

    named: Mapping[str, str]
    stated: Sequence[AddedToken] | None
    missing: Sequence[AddedToken]
    are_split: bool

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> "SpecialTokens":
        """Raises `ValueError`, `TypeError` or `RecursionError` for broken files."""
        config = read_json_object(files, CONFIG)
        config = {**CLASS_DEFAULTS.get(str(config.get("tokenizer_class")), {}), **config}
        extra = config.get(_EXTRA) or {}
        more = dict(extra) if isinstance(extra, dict) else {}
        if isinstance(extra, dict):
            # The former name of the list.
            config[_EXTRA] = config.get("additional_special_tokens")
        numbered = {int(number): _token(value) for number, value in config.get(_NUMBERED, {}).items()}
        texts: dict[str, Any] = {}
        if _NUMBERED not in config:
            # Two files of a former version, which that list replaces.
            config |= read_json_object(files, "special_tokens_map.json")
            more |= config.pop(_EXTRA) if isinstance(config.get(_EXTRA), dict) else {}
            texts = read_json_object(files, "added_tokens.json")
        extra = config.get(_EXTRA) or []
        names = [*STANDARD, *(name for name in config if name.endswith("_token") and name not in STANDARD)]
        uses = {name: config[name] for name in names if isinstance(config.get(name), str | dict)} | more
        named = {name: _token(value, special=True) for name, value in uses.items()}
        extras = [_token(value, special=True) for value in extra]
        special = {token.content for token in (*named.values(), *extras)}
        added = [
            AddedToken(text, normalized=text not in special, special=text in special)
            for text in sorted(texts, key=lambda text: int(texts[text]))
        ]
        return cls(
            named={name: token.content for name, token in named.items()},
            stated=[numbered[number] for number in sorted(numbered)] if _NUMBERED in config else None,
            missing=[*added, *named.values(), *extras],
            are_split=bool(config.get("split_special_tokens")),
        )

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Add them to a tokenizer. New ones get the next ids."""
        own = tokenizer.get_added_tokens_decoder().values()
        known = {token.content for token in own}
        tokens = {token.content: token for token in (own if self.stated is None else self.stated)}
        for token in self.missing:
            if token.content not in known:
                tokens.setdefault(token.content, token)
        for text in self.named.values():
            if text in tokens and not tokens[text].special:
                tokens[text].special = True
        # The tokenizer ignores unchanged ones.
        tokenizer.add_tokens(list(tokens.values()))
        tokenizer.encode_special_tokens = self.are_split


def tokenizer_eos(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """Return the EOS token of a tokenizer's files, if any."""
    try:
        text = SpecialTokens.read(files).named.get("eos_token")
        tokenizer = read_json_object(files, "tokenizer.json")
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        found = added.get(text, vocabulary.get(text) if isinstance(vocabulary, dict) else None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Loading the tokenizer reports the error.
        return ()
    return (found,) if isinstance(found, int) and 0 <= found <= MAX_TOKEN_ID else ()


def _token(value: Any, *, special: bool = False) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=special)
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    return AddedToken(str(value["content"]), **({"special": special} | flags))
