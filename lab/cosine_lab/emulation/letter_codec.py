"""A tokenizer with one letter per token, so that simulated texts are readable."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from cosine_p2p.text.chat_template import ChatTemplates
from cosine_p2p.text.token_effects import TokenEffect
from cosine_p2p.text.tokenizer import TextTokenizer

FIRST_LETTER: Final = 48
"""Token 0 is the character 0, so that small vocabularies are printable."""


class LetterCodec(TextTokenizer):
    """A tokenizer whose token t is the character `chr(48 + t)`."""

    longest_token = 1
    vocab_tokens = sys.maxunicode + 1 - FIRST_LETTER

    def __init__(self) -> None:
        self.named_tokens: Mapping[str, str] = {}
        self._templates = ChatTemplates({})

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(ord(letter) - FIRST_LETTER for letter in text)

    def encode_all(self, texts: Sequence[str]) -> list[Sequence[int]]:
        # Quotes come before the first letter.
        return [[token for token in self.encode(text) if token >= 0] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([chr(FIRST_LETTER + token) for token in tokens])

    def effect(self, token: int) -> TokenEffect:
        return TokenEffect.WHOLE

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token]).encode(errors="replace")

    def special_text(self, token: int) -> str:
        return ""

    def chat_template(self, name: str | None = None, *, has_tools: bool = False) -> str:
        return ""
