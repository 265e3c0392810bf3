"""The target's tokenizer and chat template, without torch or transformers."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from cosine_p2p.token_effects import TokenEffect, TokenEffects
from cosine_protocol.errors import PromptRefused, UsageError


class TextCodec:
    """Text to token ids and back, built from tokenizer files (name -> bytes).

    Raises `UsageError` if the files hold no usable tokenizer.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise UsageError("The target has no tokenizer.json; only fast tokenizers are supported.")
        try:
            self._tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
            self._config: dict[str, Any] = json.loads(files.get("tokenizer_config.json", b"{}"))
            template = files.get("chat_template.jinja", b"").decode()
        except ValueError as error:
            raise UsageError(f"The target's tokenizer files cannot be read: {error}.") from None
        self._chat_template = template or self._config.get("chat_template")

    @cached_property
    def vocab_tokens(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain prompt, with the special tokens the tokenizer adds by default."""
        return tuple(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def effect(self, token: int) -> TokenEffect:
        """The part of the text that is certain once a token has come."""
        return self._effects.of(token)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a chat rendered by the target's own template, ready for the assistant's turn."""
        if not self._chat_template:
            raise PromptRefused("The target has no chat template; send plain text, without --chat or messages.")
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # for chats alone

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            text = environment.from_string(self._chat_template).render(
                messages=list(messages), add_generation_prompt=True, **self._special_tokens()
            )
        except Exception as error:  # a template is a stranger's program and may raise anything
            raise PromptRefused(f"The target's chat template refused the messages: {error}.") from None
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _effects(self) -> TokenEffects:
        return TokenEffects(self._tokenizer)

    def _special_tokens(self) -> dict[str, str]:
        named = {name: self._config.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
        return {name: text for name, text in texts.items() if text}
