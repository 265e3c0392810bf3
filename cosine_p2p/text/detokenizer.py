"""Text of a stream of tokens as soon as it is certain: no later token, and no stop string, takes anything back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cosine_p2p.text.token_effects import REPLACEMENT, TokenEffect

CONTEXT_CHARACTERS: Final = 4
"""Bound: a character has at most four bytes, so that half a one cannot begin before so much text."""
SETTLED_AFTER_TOKENS: Final = 32
"""A few times the context; each token is decoded a few dozen times, at microseconds for all of them."""


class Codec(Protocol):
    """A tokenizer, as far as text is made from tokens."""

    def decode(self, tokens: Sequence[int]) -> str: ...

    def effect(self, token: int) -> TokenEffect: ...


class Detokenizer:
    """Text is decode(prompt + output) without what it has in common with the beginning of decode(prompt).

    Half a character at the end of the prompt so belongs to the output that completes it. Only the last tokens are
    decoded: those since the text became certain, after a few whose own text is then left away. Time grows with the
    length of the output, however much of it is held back.

    `tokenizers.decoders.DecodeStream` (0.23) does not meet this. Under byte fallback it gives characters that a
    later byte spoils, or raises; it loses half a character of the prompt, and never gives what it holds at the end.
    """

    def __init__(self, codec: Codec, prompt: Sequence[int]) -> None:
        self._codec = codec
        tokens = [token for token in prompt if codec.effect(token) is not TokenEffect.SILENT]
        settled = len(tokens)
        while settled and codec.effect(tokens[settled - 1]) is TokenEffect.OPEN:
            settled -= 1
        self._window = [*self._context(tokens[:settled]), *tokens[settled:]]
        # The text of the window that needs not be given: the prompt's at first, then what was given.
        self._passed = codec.decode(self._window)

    def add(self, token: int) -> str:
        """The text that became certain with one more token."""
        effect = self._codec.effect(token)
        if effect is TokenEffect.SILENT:
            return ""
        self._window.append(token)
        if effect is TokenEffect.OPEN:
            return ""
        new = self._pass(self._certain(effect))
        if new and len(self._window) > SETTLED_AFTER_TOKENS:
            self._window = self._context(self._window)
            self._passed = self._certain(effect)
        return new

    def finish(self) -> str:
        """The text held back so far: no token follows."""
        return self._pass(self._codec.decode(self._window))

    def _certain(self, effect: TokenEffect) -> str:
        """The certain text of the window, whose last token has this effect."""
        text = self._codec.decode(self._window)
        return text.removesuffix(REPLACEMENT) if effect is TokenEffect.BYTES else text

    def _pass(self, text: str) -> str:
        common = len(self._passed)
        if not text.startswith(self._passed):
            # The output has completed half a character of the prompt; or it has not, and there is nothing yet.
            pairs = zip(text, self._passed, strict=False)
            common = next((index for index, (one, other) in enumerate(pairs) if one != other), len(text))
        if common == len(text):
            return ""
        self._passed = text
        return text[common:]

    def _context(self, tokens: list[int]) -> list[int]:
        """The end of a text whose last token is not open: what follows is decoded after it as after all the text.

        It has some text, so that what is done at the beginning of a text alone happens in it.
        """
        size = 1
        while size < len(tokens) and len(self._codec.decode(tokens[-size:])) < CONTEXT_CHARACTERS:
            size *= 2
        return tokens[-size:]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain. `is_stopped` says that a stop string ended the output."""

    text: str
    is_stopped: bool = False


class TextAssembler:
    """The text of a `Detokenizer`, cut where the first stop string begins.

    It is cut at the first token with which a stop string is certain to occur: before the one that begins first, if
    there are several by then. `add` holds back whatever could begin a stop string; `finish` gives the rest.
    """

    def __init__(self, codec: Codec, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(codec, prompt)
        self._stop = tuple(stop)
        self._longest = max(map(len, stop), default=0)
        self._held = ""

    def add(self, token: int) -> Piece:
        """One more token; a stopped piece is the last."""
        new = self._detokenizer.add(token)
        if not new:
            return Piece("")
        text = self._held + new
        if (end := self._stop_in(text)) is not None:
            return Piece(text[:end], is_stopped=True)
        # A stop string may have begun in the last characters.
        starts = range(max(0, len(text) - self._longest + 1), len(text))
        certain = next((s for s in starts if any(stop.startswith(text[s:]) for stop in self._stop)), len(text))
        self._held = text[certain:]
        return Piece(text[:certain])

    def finish(self) -> Piece:
        """The text held back so far: the output has ended. A stop string may be in what was not certain before."""
        text = self._held + self._detokenizer.finish()
        end = self._stop_in(text)
        return Piece(text[:end], is_stopped=end is not None)

    def _stop_in(self, text: str) -> int | None:
        """The place where the first stop string in a text begins."""
        return min((place for stop in self._stop if (place := text.find(stop)) >= 0), default=None)
