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
from cosine_protocol.fields import MAX_PROMPT_TOKENS

BLOCKING_CHARACTERS: Final = 10_000  # Encoding these takes some milliseconds, during which no other thread runs.


@contextmanager
def failures_as(error: type[CosineError], sentence: str) -> Iterator[None]:
    """Convert a bare `Exception` or panic (pyo3) of the tokenizer's library to `error`."""
    try:
        yield
    except BaseException as failure:
        if type(failure) is not Exception and type(failure).__module__ != "pyo3_runtime":
            raise
        raise error(sentence) from None


def load_tokenizer(path: str | PathLike[str]) -> "TextTokenizer":
    """Return the tokenizer of a model's folder or GGUF file, with or without weights. Raises `UsageError`."""
    place = Path(path).expanduser()
    if is_gguf(place):
        return TextTokenizer(tokenizer_files(place))
    files = TokenizerFiles.read(place)
    if files is None:
        raise UsageError(f"{place} is no folder with a tokenizer; it needs a tokenizer.json.")
    return TextTokenizer(files.files)


class TextTokenizer:
    """A tokenizer for text and chats, built from tokenizer files (name -> bytes).

    The files may be untrusted: reading and encoding may take long and belong in a thread. Raises `UsageError` if
    the files have no usable tokenizer.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise UsageError("The target has no tokenizer.json; only fast tokenizers are supported.")
        try:
            special = SpecialTokens.read(files)
            self._templates = ChatTemplates.read(files)
            with failures_as(UsageError, "The target's tokenizer.json cannot be read."):
                self.library = Tokenizer.from_buffer(files["tokenizer.json"].removeprefix(BOM_UTF8))
                # As in transformers, a prompt is not cut to the length of the tokenizer's training.
                self.library.no_padding()
                self.library.no_truncation()
                special.add_to(self.library)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise UsageError(f"The target's tokenizer files cannot be read: {error}.") from None
        self.named_tokens = special.named

    @cached_property
    def vocab_tokens(self) -> int:
        """The highest token id plus one."""
        return 1 + max(self.library.get_vocab().values(), default=-1)

    @cached_property
    def longest_token(self) -> int:
        """The length of the longest token in characters, which bounds the characters per token."""
        return max(map(len, self.library.get_vocab()), default=1)

    def check_length(self, text: str, most_tokens: int = MAX_PROMPT_TOKENS) -> None:
        """Raise `PromptTooLong` for a text that has more tokens by its number of characters."""
        most = most_tokens * self.longest_token
        if len(text) > most:
            raise PromptTooLong(
                f"The prompt is too long: {len(text)} characters > {most} that {most_tokens} tokens have at most; "
                "shorten it."
            )

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text, by default with special tokens. Raises `PromptRefused`."""
        self.check_length(text)
        with failures_as(PromptRefused, "The target's tokenizer failed on the prompt."):
            if len(text) < BLOCKING_CHARACTERS:
                return tuple(self.library.encode(text, add_special_tokens=add_special_tokens).ids)
            # The only call that releases the GIL; it also stores no offsets.
            return tuple(self.library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def encode_all(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the token ids of texts without special tokens, on all cores. Raises `PromptRefused`."""
        with failures_as(PromptRefused, "The target's tokenizer failed on a text."):
            found = self.library.encode_batch_fast(list(texts), add_special_tokens=False)
            return [each.ids for each in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids without special tokens, with U+FFFD for invalid bytes."""
        with failures_as(GenerationFailed, "The target's tokenizer failed on the tokens of its text."):
            text: str = self.library.decode(list(tokens), skip_special_tokens=True)
            if self._effects.has_fallback and REPLACEMENT in text:
                text = self._effects.decoded_by_character(tokens)
        return text

    def effect(self, token: int) -> TokenEffect:
        return self._effects.of(token)

    def special_text(self, token: int) -> str:
        """Return the text of a special token, which `decode` leaves out; empty for any other."""
        return self._effects.special_text(token)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text, which may be an incomplete character."""
        return self._effects.bytes_of(token)

    def chat_template(self, name: str | None = None, *, has_tools: bool = False) -> str:
        """Return a chat template. Raises `PromptRefused` if there is none."""
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
        """Return the text of a chat, identical to that of transformers.

        `tools` are JSON schemas, `documents` objects with title and text. With `continue_final_message` (True or a
        field's name) the text ends with the final message, else ready for the assistant's turn. `template` is a
        template's name or text. Raises `PromptRefused`, with the template's message if any.
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
        """Return the token ids of a chat; arguments as of `render_chat`."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    @cached_property
    def _effects(self) -> TokenEffects:
        return TokenEffects(self.library)
