"""Text of a generation: certain text, and nothing that a stop string could still take back."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_p2p.detokenizer import Codec, Detokenizer


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
