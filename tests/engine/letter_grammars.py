"""Constraints over a vocabulary of a few letters, compiled in this process, for engines without weights."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from llguidance import LLTokenizer, TokenizerWrapper

from cosine_engine.constraints import trial
from cosine_engine.constraints.grammars import Grammars, Tried
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_protocol.request import Constraint

LETTERS: Final = (*'{}[]":,.-0123456789abeflnrstu ', '":')
"""The texts of tokens 0, 1, ...; enough for JSON, one of them two letters long."""
END: Final = len(LETTERS)
"""The token that ends a text."""


class LetterTokens:
    """The tokenizer of `LETTERS` in llguidance's form."""

    eos_token_id: int = END
    bos_token_id: int | None = None
    tokens: Sequence[bytes] = (*(text.encode() for text in LETTERS), b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [END]

    def __call__(self, text: bytes | str) -> list[int]:
        letters = text if isinstance(text, str) else text.decode(errors="ignore")
        return [LETTERS.index(letter) for letter in letters if letter in LETTERS]


def text_of(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens if token != END)


def fault(constraint: Constraint) -> str:
    return trial.fault_of(constraint.kind, constraint.text)


def tried(constraint: Constraint) -> Tried:
    return Tried(fault(constraint))


def letter_grammars(*, waits: bool = True, tried: Callable[[Constraint], Tried] = tried) -> Grammars:
    tokenizer = LLTokenizer(TokenizerWrapper(LetterTokens()))
    return Grammars(tokenizer, waits=waits, offload=call_at_once, tried=tried)
