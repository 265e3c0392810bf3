"""A model's tokenizer and chat templates, without torch or transformers."""

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from cosine_p2p.gguf.header import is_gguf
from cosine_p2p.gguf.tokenizer import tokenizer_files
from cosine_p2p.text.chat_template import ChatTemplates
from cosine_p2p.text.special_tokens import SpecialTokens
from cosine_p2p.text.token_effects import REPLACEMENT, TokenEffect, TokenEffects
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import CosineError, GenerationFailed, PromptRefused, PromptTooLong, UsageError
from cosine_protocol.limits import MAX_PROMPT_TOKENS

BLOCKING_CHARACTERS: Final = 10_000  # Reading so many takes some milliseconds, in which no other thread runs.


@contextmanager
def failures_as(error: type[CosineError], sentence: str) -> Iterator[None]:
    """Raise `error` where the tokenizer's library raises a bare `Exception`, or panics (pyo3)."""
    try:
        yield
    except BaseException as failure:
        if type(failure) is not Exception and type(failure).__module__ != "pyo3_runtime":
            raise
        raise error(sentence) from None


def load_tokenizer(path: str | PathLike[str]) -> "TextTokenizer":
    """The tokenizer in a model's folder or GGUF file, with or without weights. Raises `UsageError`."""
    place = Path(path).expanduser()
    if is_gguf(place):
        return TextTokenizer(tokenizer_files(place))
    files = TokenizerFiles.read(place)
    if files is None:
        raise UsageError(f"{place} is no folder with a tokenizer; it needs a tokenizer.json.")
    return TextTokenizer(files.files)


class TextTokenizer:
    """Text and chats to token ids and back, built from tokenizer files (name -> bytes).

    The files may be a stranger's: reading and encoding may take long and belong into a thread. Raises `UsageError`
    if the files hold no usable tokenizer.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise UsageError("The target has no tokenizer.json; only fast tokenizers are supported.")
        try:
            special = SpecialTokens.read(files)
            self._templates = ChatTemplates.read(files)
            with failures_as(UsageError, "The target's tokenizer.json cannot be read."):
                self.library = Tokenizer.from_buffer(files["tokenizer.json"].removeprefix(BOM_UTF8))
                # A prompt is read as it is, as transformers reads it, whatever length a tokenizer was trained with.
                self.library.no_padding()
                self.library.no_truncation()
                special.add_to(self.library)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise UsageError(f"The target's tokenizer files cannot be read: {error}.") from None
        self.named_tokens = special.named

    @cached_property
    def vocab_tokens(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self.library.get_vocab().values(), default=-1)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, which bounds the characters per token."""
        return max(map(len, self.library.get_vocab()), default=1)

    def check_length(self, text: str, most_tokens: int = MAX_PROMPT_TOKENS) -> None:
        """Raise `PromptTooLong` for a text whose characters alone say that it has more tokens."""
        most = most_tokens * self.longest_token
        if len(text) > most:
            raise PromptTooLong(
                f"The prompt is too long: {len(text)} characters > {most} that {most_tokens} tokens have at most; "
                "shorten it."
            )

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, with special tokens by default. Raises `PromptTooLong`, and `PromptRefused`."""
        self.check_length(text)
        with failures_as(PromptRefused, "The target's tokenizer failed on the prompt."):
            if len(text) < BLOCKING_CHARACTERS:
                return tuple(self.library.encode(text, add_special_tokens=add_special_tokens).ids)
            # Alone among its calls this lets other threads run meanwhile, and it keeps no offsets in memory.
            return tuple(self.library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids without special tokens; U+FFFD stands for bytes that are no character."""
        with failures_as(GenerationFailed, "The target's tokenizer failed on the tokens of its text."):
            text: str = self.library.decode(list(tokens), skip_special_tokens=True)
            if self._effects.has_fallback and REPLACEMENT in text:
                text = self._effects.decoded_by_character(tokens)
        return text

    def effect(self, token: int) -> TokenEffect:
        return self._effects.of(token)

    def special_text(self, token: int) -> str:
        """The text of a special token, which `decode` leaves out; empty for any other."""
        return self._effects.special_text(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text, maybe half a character; none for a special one."""
        return self._effects.bytes_of(token)

    def chat_template(self, name: str | None = None, *, has_tools: bool = False) -> str:
        """Raises `PromptRefused` if there is none."""
        return self._templates.chosen(name, has_tools=has_tools)

    def render_chat(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        template: str | None = None,
        **template_options: Any,
    ) -> str:
        """The text of a chat by a template of the tokenizer, character by character what transformers renders.

        `tools` are JSON schemas, `documents` objects with title and text. With `continue_final_message` (True or a
        field's name) the text ends where the final message does, else ready for the assistant's turn. `template` is
        the name of one, or the text of any. Raises `PromptRefused`, with the template's own sentence.
        """
        return self._templates.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template=template,
            values={**self.named_tokens, **template_options},
        )

    def encode_chat(self, messages: Sequence[Any], **options: Any) -> tuple[int, ...]:
        """Token ids of a chat; as `render_chat`."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    @cached_property
    def _effects(self) -> TokenEffects:
        return TokenEffects(self.library)
