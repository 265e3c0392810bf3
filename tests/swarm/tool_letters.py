"""A tokenizer of letters with two special tokens of Mistral, for a target that calls tools."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from llguidance import LLTokenizer, TokenizerWrapper

from cosine_engine.constraints.grammars import Grammars
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_p2p.text.token_effects import TokenEffect
from tests.engine.letter_grammars import LETTERS, LetterTokens, tried

MARKS: Final = ("[TOOL_CALLS]", "[ARGS]")
TEXTS: Final = (*LETTERS, *MARKS)
END: Final = len(TEXTS)


class ToolTokens(LetterTokens):
    eos_token_id = END
    tokens: Sequence[bytes] = (*(text.encode() for text in TEXTS), b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [*range(len(LETTERS), END), END]


class ToolLetters(LetterCodec):
    """A codec of `TEXTS`; other letters are dropped from a prompt. A chat is its tools and contents."""

    vocab_tokens = END + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        tokens = []
        while text:
            mark = next((mark for mark in MARKS if text.startswith(mark)), text[0])
            tokens += [TEXTS.index(mark)] if mark in TEXTS else []
            text = text[len(mark) :]
        return tuple(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(LETTERS[token] for token in tokens if token < len(LETTERS))

    def effect(self, token: int) -> TokenEffect:
        return TokenEffect.WHOLE if token < len(LETTERS) else TokenEffect.SILENT

    def special_text(self, token: int) -> str:
        return "" if token < len(LETTERS) else (*TEXTS, "<end>")[token]

    def chat_template(self, name: str | None = None, *, has_tools: bool = False) -> str:
        return "".join(MARKS)

    def render_chat(self, messages: Sequence[Any], *, tools: Any = None, **options: Any) -> str:
        names = [tool["function"]["name"] for tool in tools or ()]
        return "".join([*names, *(message["content"] for message in messages)])


def calling_engine(fidelity: float = 1.0, seed: int = 0, *, waits: bool = True) -> ScriptedEngine:
    tokenizer = LLTokenizer(TokenizerWrapper(ToolTokens()))
    grammars = Grammars(tokenizer, waits=waits, offload=call_at_once, tried=tried)
    return ScriptedEngine(vocab_tokens=END + 1, fidelity=fidelity, drafter_seed=seed, grammars=grammars)
