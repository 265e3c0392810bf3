"""The target's tokenizer and chat template, without torch or transformers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from cosine_p2p.text.chat_template import ChatTemplate
from cosine_p2p.text.token_effects import TokenEffect, TokenEffects
from cosine_protocol.errors import CosineError, GenerationFailed, PromptRefused, UsageError


@contextmanager
def failures_as(error: type[CosineError], sentence: str) -> Iterator[None]:
    """Raise an error where the tokenizer's library fails, with an `Exception` of no class of its own, or panics.

    A panic (pyo3) is one that no `except Exception` would see.
    """
    try:
        yield
    except BaseException as failure:
        if type(failure) is not Exception and type(failure).__module__ != "pyo3_runtime":
            raise
        raise error(sentence) from None


class TextTokenizer:
    """Text to token ids and back, built from tokenizer files (name -> bytes).

    The files may be a stranger's, checked against the target's digest and no more: reading and encoding may take
    long, so that both belong into a thread. Raises `UsageError` if the files hold no usable tokenizer.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise UsageError("The target has no tokenizer.json; only fast tokenizers are supported.")
        try:
            with failures_as(UsageError, "The target's tokenizer.json cannot be read."):
                self._tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
                # A prompt is read as it is, as transformers reads it, whatever length a tokenizer was trained with.
                self._tokenizer.no_padding()
                self._tokenizer.no_truncation()
            self._config: dict[str, Any] = json.loads(files.get("tokenizer_config.json", b"{}"))
            own_file = files.get("chat_template.jinja", b"").decode()
        except (ValueError, RecursionError) as error:
            raise UsageError(f"The target's tokenizer files cannot be read: {error}.") from None
        if not isinstance(self._config, dict):
            raise UsageError("The target's tokenizer_config.json holds no object.")
        template = own_file or self._config.get("chat_template")
        self._chat_template = ChatTemplate(template) if isinstance(template, str) and template else None

    @cached_property
    def vocab_tokens(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain prompt, with the special tokens the tokenizer adds by default."""
        return self._encoded(text, add_special_tokens=True)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids without special tokens."""
        with failures_as(GenerationFailed, "The target's tokenizer failed on the tokens of its text."):
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def effect(self, token: int) -> TokenEffect:
        """The part of the text that is certain once a token has come."""
        return self._effects.of(token)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a chat rendered by the target's own template, ready for the assistant's turn."""
        if self._chat_template is None:
            raise PromptRefused("The target has no chat template; send plain text, without --chat or messages.")
        values = {"messages": list(map(dict, messages)), "add_generation_prompt": True, **self._special_tokens()}
        return self._encoded(self._chat_template.render(values), add_special_tokens=False)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        with failures_as(PromptRefused, "The target's tokenizer failed on the prompt."):
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    @cached_property
    def _effects(self) -> TokenEffects:
        return TokenEffects(self._tokenizer)

    def _special_tokens(self) -> dict[str, str]:
        named = {name: self._config.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
        return {name: text for name, text in texts.items() if text}
