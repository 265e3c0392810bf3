"""A prompt as a program gives it: text, token ids or a chat; checked before anybody is asked, then encoded."""

import asyncio
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cosine_p2p.request.arguments import TOKEN_ID
from cosine_p2p.request.offload import Offload
from cosine_p2p.request.options import Prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import PromptRefused
from cosine_protocol.limits import MAX_TOKEN_ID

LONG_CHARACTERS: Final = 100_000
"""Reading so many takes some tenths of a second."""
ENCODE_TIMEOUT_S: Final = 60.0
"""The longest prompts take some seconds; a tokenizer whose expressions never end is not waited for."""


def read_prompt(value: object) -> Prompt:
    """The prompt that a value is; arrays become lists. Raises `PromptRefused` saying what to give instead."""
    if isinstance(value, str):
        _refuse_half_characters(value, "The prompt")
        items: Sequence[Any] = value
    else:
        items = _items(value)
    if not items:
        raise PromptRefused("The prompt is empty; give at least one character.")
    if isinstance(items, str):
        return items
    if all(isinstance(item, Mapping) for item in items):
        for number, message in enumerate(items, start=1):
            _check_message(number, message)
        return items
    if any(isinstance(item, str | Sequence) for item in items):
        raise PromptRefused(
            "A call takes one prompt, not several; call it for each, or run them at the same time with "
            "`Client.submit` or `asyncio.gather`."
        )
    return tuple(_token_id(item) for item in items)


def encode_prompt(codec: TextTokenizer, prompt: Prompt) -> tuple[int, ...]:
    """The token ids of a checked prompt, at least one. Raises `PromptRefused` for ids that the target lacks."""
    if isinstance(prompt, str):
        tokens = codec.encode(prompt)
    elif isinstance(prompt[0], int):
        tokens = tuple(token for token in prompt if isinstance(token, int))
        highest = codec.vocab_tokens - 1
        if max(tokens) > highest:
            raise PromptRefused(
                f"Token ids of a prompt must be whole numbers from 0 to {highest}, not {max(tokens)}."
            )
    else:
        tokens = codec.encode_chat([message for message in prompt if isinstance(message, Mapping)])
    if not tokens:
        raise PromptRefused("The prompt is empty; give at least one character.")
    return tokens


class PromptEncoder:
    """Encodes prompts away from the event loop, long ones apart: they take seconds, and others would wait."""

    def __init__(self, offload: Offload, offload_long: Offload) -> None:
        self._offload = offload
        self._offload_long = offload_long

    async def encode(self, codec: TextTokenizer, prompt: Prompt) -> tuple[int, ...]:
        """As `encode_prompt`. Raises `PromptRefused` also for one that takes very long."""
        tokens: tuple[int, ...] = ()

        def encode() -> None:
            nonlocal tokens
            tokens = encode_prompt(codec, prompt)

        is_long = _length(prompt) > LONG_CHARACTERS
        try:
            async with asyncio.timeout(ENCODE_TIMEOUT_S):
                await (self._offload_long if is_long else self._offload)(encode)
        except TimeoutError:
            raise PromptRefused(f"The prompt could not be read within {ENCODE_TIMEOUT_S:.0f} s.") from None
        return tokens


def _length(prompt: Prompt) -> int:
    """Characters or tokens."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(part.get("content"))) if isinstance(part, Mapping) else 1 for part in prompt)


def _items(value: object) -> Sequence[Any]:
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, Mapping):
        raise PromptRefused("A chat is a list of messages; write [message] for a single one.")
    if isinstance(items, bytes | bytearray | memoryview):
        raise PromptRefused("A prompt is text, not bytes; decode it first, as in prompt.decode().")
    if not isinstance(items, Sequence):
        raise PromptRefused(
            f"A prompt is a text, a list of token ids or a list of chat messages, not {reprlib.repr(value)}."
        )
    return items


def _check_message(number: int, message: Mapping[Any, Any]) -> None:
    for field in ("role", "content"):
        said = message.get(field)
        if not isinstance(said, str):
            raise PromptRefused(
                f"Message {number} of the chat must have a {field} that is text, not {reprlib.repr(said)}."
            )
        _refuse_half_characters(said, f"The {field} of message {number}")


def _refuse_half_characters(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptRefused(
            f"{what} has half a character at {error.start}, {text[error.start]!r}; decode it from bytes again."
        ) from None


def _token_id(item: object) -> int:
    try:
        return TOKEN_ID.read(item)
    except (TypeError, ValueError, OverflowError):
        raise PromptRefused(
            f"Token ids of a prompt must be whole numbers from 0 to {MAX_TOKEN_ID}, not {reprlib.repr(item)}."
        ) from None
