"""Text of a stream of tokens: only whole characters, and nothing that a stop string could still take back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

REPLACEMENT: Final = "\ufffd"
"""What decoding puts for bytes that are no character, or not yet."""
MAX_HELD_REPLACEMENTS: Final = 4
"""A character has at most four bytes: more of them will not become one."""
CONTEXT_TOKENS: Final = 16
"""Tokens decoded again before new ones: what a token's text depends on lies in the few before it."""
SETTLED_AFTER_TOKENS: Final = 32
"""A choice: twice the context, so that on average each token is decoded a few times."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain. `is_stopped` says that a stop string ended the output."""

    text: str
    is_stopped: bool = False


class TextAssembler:
    """Text is decode(prompt + output) minus decode(prompt), cut before the first stop string.

    `add` holds back incomplete UTF-8 and whatever could begin a stop string; `finish` gives the rest. Only
    the end is decoded each time: the text up to a token that completes a character is settled.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._settled = ""
        self._settled_tokens = len(self._tokens)
        self._context_characters = len(decode(self._tokens))
        self._stop = tuple(stop)
        self._given = 0

    def add(self, token: int) -> Piece:
        """One more token; a stopped piece is the last."""
        self._tokens.append(token)
        text = self._text()
        if len(self._tokens) - self._settled_tokens >= SETTLED_AFTER_TOKENS and not text.endswith(REPLACEMENT):
            self._settled = text
            del self._tokens[:-CONTEXT_TOKENS]
            self._settled_tokens = len(self._tokens)
            self._context_characters = len(self._decode(self._tokens))
        ends = [index for stop in self._stop if (index := text.find(stop, self._given)) >= 0]
        if ends:
            return self._give(text[: min(ends)], is_stopped=True)
        whole = _without_incomplete_end(text)
        for start in range(self._given, len(whole)):
            if any(stop.startswith(whole[start:]) for stop in self._stop):
                # A stop string may have begun here.
                return self._give(whole[:start])
        return self._give(whole)

    def finish(self) -> Piece:
        """The text held back so far: the output has ended without a stop string."""
        return self._give(self._text())

    def _text(self) -> str:
        return self._settled + self._decode(self._tokens)[self._context_characters :]

    def _give(self, text: str, *, is_stopped: bool = False) -> Piece:
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return Piece(new, is_stopped)


def _without_incomplete_end(text: str) -> str:
    """Drop trailing replacement characters: bytes of a character whose rest is still to come."""
    bare = text.rstrip(REPLACEMENT)
    return bare if len(text) - len(bare) <= MAX_HELD_REPLACEMENTS else text
