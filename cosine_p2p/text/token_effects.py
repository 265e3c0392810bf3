"""The effects of tokens on the text before them, which decide when text is certain."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import groupby
from typing import Any, Final

from tokenizers import Tokenizer

REPLACEMENT: Final = "\ufffd"  # The decoded text of invalid or incomplete bytes.
_BYTE: Final = re.compile("<0x[0-9A-Fa-f]{2}>")  # The name of a byte's token with byte fallback.
Step = Mapping[str, Any]  # A step of a decoder in tokenizer.json, as in tokenizers 0.23, `src/decoders`.


class TokenEffect(Enum):
    """The part of the text that is certain after a token."""

    SILENT = auto()  # As much as before: a special or unknown token.
    OPEN = auto()  # Nothing more: the text depends on the tokens up to one that is not open.
    BYTES = auto()  # All but U+FFFD at the end, which may be an incomplete character.
    WHOLE = auto()  # All of it.


class TokenEffects:
    """The effects of a tokenizer's tokens; all `OPEN` if a decoder's step is unknown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        self._special = frozenset(token.content for token in added if token.special)
        decoder = tokenizer.decoder
        steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
        kinds = {step["type"] for step in steps}
        self._is_local = _is_local(steps)
        self._joins_bytes = "ByteLevel" in kinds
        self.has_fallback = "ByteFallback" in kinds
        """True if single bytes have tokens such as `<0xF0>`."""
        self._suffix = next((str(step["suffix"]) for step in steps if step["type"] == "BPEDecoder"), "")
        self._replaced = list(_replacements(steps))
        self._known: dict[int, TokenEffect] = {}

    def of(self, token: int) -> TokenEffect:
        effect = self._known.get(token)
        if effect is None:
            effect = self._known[token] = self._read(self._tokenizer.id_to_token(token))
        return effect

    def special_text(self, token: int) -> str:
        """Return the text of a special token, empty for any other."""
        name = self._tokenizer.id_to_token(token)
        return name if name in self._special else ""

    def decoded_by_character(self, tokens: Sequence[int]) -> str:
        """Decode as SentencePiece: U+FFFD for each invalid byte; the library replaces a whole run."""
        found = map(self._tokenizer.id_to_token, tokens)
        names = [name for name in found if name is not None and name not in self._special]
        apart: list[str] = []
        for is_byte, run in groupby(names, lambda name: _BYTE.fullmatch(name) is not None):
            if not is_byte:
                apart += run
                continue
            data = bytes(int(name[3:5], 16) for name in run)
            for letter in data.decode(errors="surrogateescape"):
                # An empty name ends a run of bytes.
                apart += [*(f"<0x{byte:02X}>" for byte in letter.encode(errors="surrogateescape")), ""]
        text: str = self._tokenizer.decoder.decode(apart)
        return text

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text, with a space before a word; none for a special one."""
        name = self._tokenizer.id_to_token(token)
        if name is None or name in self._special:
            return b""
        if self._joins_bytes and all(letter in BYTE_OF for letter in name):
            return bytes(BYTE_OF[letter] for letter in name)
        if self.has_fallback and _BYTE.fullmatch(name):
            return bytes.fromhex(name[3:5])
        for old, new in self._replaced:
            name = name.replace(old, new)
        return name.encode(errors="replace")

    def _read(self, name: str | None) -> TokenEffect:
        if name is None or name in self._special:
            return TokenEffect.SILENT
        if not self._is_local:
            return TokenEffect.OPEN
        if self._suffix and name.find(self._suffix) not in (-1, len(name) - len(self._suffix)):
            # The suffix becomes a space, except in the last token of a text.
            return TokenEffect.OPEN
        is_byte = self.has_fallback and _BYTE.fullmatch(name)
        return TokenEffect.BYTES if self._joins_bytes or is_byte else TokenEffect.WHOLE


def _steps(decoder: Step) -> Iterator[Step]:
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _replacements(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": str(old)}:
                yield old, " "
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                yield old, new
            case {"type": "BPEDecoder", "suffix": str(old)} if old:
                yield old, " "


_SHOWN: Final = (*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), 256))
_HIDDEN: Final = [byte for byte in range(256) if byte not in _SHOWN]
BYTE_OF: Final = {chr(byte): byte for byte in _SHOWN} | {chr(256 + at): byte for at, byte in enumerate(_HIDDEN)}
"""The bytes by their letters in a byte-level vocabulary, as in GPT-2."""


def _is_local(steps: Sequence[Step]) -> bool:
    """Return whether no token changes text before it, except for bytes that are joined to characters."""
    kinds = [step["type"] for step in steps]
    if "BPEDecoder" in kinds:
        # The text of the last token ends differently, so no other step may process it.
        return len(steps) == 1 and bool(steps[0]["suffix"])
    # Steps before tokens are joined may change each separately, or the first differently, or join adjacent bytes.
    by_token = {"ByteFallback", "Metaspace", "Replace", "Strip", "WordPiece"}
    joined_at = next((index for index, kind in enumerate(kinds) if kind in ("ByteLevel", "Fuse")), len(steps))
    return by_token.issuperset(kinds[:joined_at]) and all(map(_is_by_character, steps[joined_at + 1 :]))


def _is_by_character(step: Step) -> bool:
    """Return whether a step on the whole text changes characters separately, or only the first."""
    match step:
        case {"type": "Fuse" | "Metaspace"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(text)}}:
            return len(text) == 1 and text != REPLACEMENT
        case {"type": "Strip", "stop": 0, "content": str(text)}:
            return text != REPLACEMENT
    return False
