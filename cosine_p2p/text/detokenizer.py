"""Incremental detokenization: text is yielded once no later token or stop string can change it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from operator import itemgetter
from typing import Final

from cosine_p2p.text.token_effects import REPLACEMENT, TokenEffect
from cosine_p2p.text.tokenizer import TextTokenizer

MAX_HALF_BYTES: Final = 3  # A character has at most four bytes.
CONTEXT_CHARACTERS: Final = 2 * MAX_HALF_BYTES + 2  # An incomplete character before these has no effect at the end.
SETTLED_AFTER_TOKENS: Final = 32  # A few times the context; each token is decoded a few dozen times.


class Detokenizer:
    """The text of an output: decode(prompt + output) without its common prefix with decode(prompt).

    An incomplete character at the end of the prompt thus belongs to the output that completes it. Only the tokens
    since the last certain text, and a few before them, are decoded.

    `tokenizers.decoders.DecodeStream` (0.23) is not used: with byte fallback it raises for invalid bytes, loses an
    incomplete character of the prompt, and does not return what it holds at the end.
    """

    def __init__(self, codec: TextTokenizer, prompt: Sequence[int]) -> None:
        self._codec = codec
        tokens = [token for token in prompt if codec.effect(token) is not TokenEffect.SILENT]
        settled = len(tokens)
        while settled and codec.effect(tokens[settled - 1]) is TokenEffect.OPEN:
            settled -= 1
        self._window = [*self._context(tokens[:settled]), *tokens[settled:]]
        # The text of the window that was returned before, at first that of the prompt.
        self._passed = codec.decode(self._window)

    def add(self, token: int) -> str:
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

    def pending(self) -> str:
        """Return the text that is held back, as it is without further tokens."""
        return self._beyond_passed(self._codec.decode(self._window))

    def finish(self) -> str:
        return self._pass(self._codec.decode(self._window))

    def _certain(self, effect: TokenEffect) -> str:
        text = self._codec.decode(self._window)
        if effect is not TokenEffect.BYTES:
            return text
        return text[:-MAX_HALF_BYTES] + text[-MAX_HALF_BYTES:].rstrip(REPLACEMENT)

    def _pass(self, text: str) -> str:
        new = self._beyond_passed(text)
        if new:
            self._passed = text
        return new

    def _beyond_passed(self, text: str) -> str:
        common = len(self._passed)
        if not text.startswith(self._passed):
            # The output has completed a character of the prompt; or it has not, and there is no text yet.
            pairs = zip(text, self._passed, strict=False)
            common = next((index for index, (one, other) in enumerate(pairs) if one != other), len(text))
        return text[common:]

    def _context(self, tokens: list[int]) -> list[int]:
        size = 1
        while size < len(tokens) and len(self._codec.decode(tokens[-size:])) < CONTEXT_CHARACTERS:
            size *= 2
        return tokens[-size:]


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of the text including special tokens: plain text, or one special token."""

    text: str
    is_special: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain. `stop` is the stop string that ended the output; `shown` has special tokens."""

    text: str
    stop: str | None = None
    shown: tuple[Shown, ...] = ()

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None


class _Kind(Enum):
    """The origin of a character; `SOUGHT` is a special token of a stop string."""

    PLAIN = auto()
    SOUGHT = auto()
    SPECIAL = auto()


@dataclass(frozen=True, slots=True)
class _Character:
    """A character of the output. The first one of a special token has the whole text as `token`."""

    text: str
    kind: _Kind
    token: str = ""


class TextAssembler:
    """The text of a `Detokenizer`, cut before the first stop string.

    The text ends with the first token that certainly completes a stop string. `add` holds back the possible begin
    of one; `finish` returns the rest. Stop strings with special tokens are searched in the text with the special
    tokens of stop strings. With `shows_special` pieces contain all special tokens.
    """

    def __init__(
        self, codec: TextTokenizer, prompt: Sequence[int], stop: Sequence[str] = (), *, shows_special: bool = False
    ) -> None:
        self._codec = codec
        self._detokenizer = Detokenizer(codec, prompt)
        self._stop = tuple(stop)
        self._shows_special = shows_special
        self._special_stop: set[str] = set()  # The stop strings with a special token that has occurred.
        self._held: list[_Character] = []
        # Special tokens after text that is not certain yet, with the number of characters before them.
        self._waiting: list[tuple[int, list[_Character]]] = []

    def add(self, token: int) -> Piece:
        """Add a token; a stopped piece is the last."""
        new = self._detokenizer.add(token)
        special = self._codec.special_text(token) if self._stop or self._shows_special else ""
        stops = {stop for stop in self._stop if special and special in stop}
        if stops or (special and self._shows_special):
            self._special_stop |= stops
            letters = _special(special, _Kind.SOUGHT if stops else _Kind.SPECIAL)
            pending = self._detokenizer.pending()
            if stops and (piece := self._cut([*self._held, *self._characters(pending), *letters])) is not None:
                return piece
            if pending:
                self._waiting.append((len(pending), letters))
                return Piece("")
            self._held += letters
        elif new:
            self._held += self._characters(new)
            self._waiting = [(count - len(new), letters) for count, letters in self._waiting if count > len(new)]
            if (piece := self._cut(self._held)) is not None:
                return piece
        else:
            return Piece("")
        certain = self._certain()
        given = self._piece(self._held[:certain])
        del self._held[:certain]
        return given

    def finish(self) -> Piece:
        """Return the rest, which may contain a stop string."""
        self._held += self._characters(self._detokenizer.finish())
        return self._cut(self._held) or self._piece(self._held)

    def _characters(self, new: str) -> list[_Character]:
        characters, begun = [], 0
        for count, letters in self._waiting:
            if count <= len(new):
                characters += [*_plain(new[begun:count]), *letters]
                begun = count
        return [*characters, *_plain(new[begun:])]

    def _cut(self, characters: Sequence[_Character]) -> Piece | None:
        cuts = []
        for stops, kinds in self._searches():
            places, text = _searched(characters, kinds)
            cuts += [(places[found], stop) for stop in stops if (found := text.find(stop)) >= 0]
        if not cuts:
            return None
        end, stop = min(cuts, key=itemgetter(0))
        return self._piece(characters[:end], stop)

    def _certain(self) -> int:
        certain = len(self._held)
        for stops, kinds in self._searches():
            places, text = _searched(self._held, kinds)
            longest = max(map(len, stops), default=0)
            for start in range(max(0, len(text) - longest + 1), len(text)):
                if any(stop.startswith(text[start:]) for stop in stops):
                    certain = min(certain, places[start])
                    break
        return certain

    def _searches(self) -> Iterator[tuple[Collection[str], Collection[_Kind]]]:
        """Yield stop strings with the kinds of characters in which they are searched."""
        yield self._stop, (_Kind.PLAIN,)
        if self._special_stop:
            yield self._special_stop, (_Kind.PLAIN, _Kind.SOUGHT)

    def _piece(self, characters: Sequence[_Character], stop: str | None = None) -> Piece:
        text = "".join(each.text for each in characters if each.kind is _Kind.PLAIN)
        return Piece(text, stop, tuple(_shown(characters)) if self._shows_special else ())


def _plain(text: str) -> list[_Character]:
    return [_Character(letter, _Kind.PLAIN) for letter in text]


def _special(text: str, kind: _Kind) -> list[_Character]:
    return [_Character(letter, kind, "" if index else text) for index, letter in enumerate(text)]


def _searched(characters: Sequence[_Character], kinds: Collection[_Kind]) -> tuple[list[int], str]:
    places = [index for index, each in enumerate(characters) if each.kind in kinds]
    return places, "".join(characters[place].text for place in places)


def _shown(characters: Sequence[_Character]) -> Iterator[Shown]:
    for is_special, run in groupby(characters, key=lambda each: each.kind is not _Kind.PLAIN):
        if is_special:
            yield from (Shown(each.token, is_special=True) for each in run if each.token)
        else:
            yield Shown("".join(each.text for each in run))
