"""The project's prompts for the embedded models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosine_engine.zoo.family import DOMAINS
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    # Commands that import this module need no tokenizer.
    from tokenizers import Tokenizer

ASKED_BY_PEOPLE = "people"

END = "<|endoftext|>"
"""The token at the beginning and end of each training text."""


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a conversation; `role` is "user", "assistant" or "system"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with the user's turn, or the beginning of a plain text."""

    domain: str
    messages: tuple[Message, ...] = ()
    text: str = ""

    def render(self) -> str:
        """The text for the target, as the chat template renders it."""
        if self.text:
            return END + self.text
        turns = [
            f"<|{message.role}|>{message.content}{END if message.role == 'assistant' else ''}"
            for message in self.messages
        ]
        return END + "".join(turns) + "<|assistant|>"

    @property
    def asked(self) -> str | list[dict[str, str]]:
        """The prompt for a client: text or chat messages."""
        return [{"role": message.role, "content": message.content} for message in self.messages] or self.text

    @property
    def last(self) -> str:
        return self.messages[-1].content if self.messages else self.text

    def token_ids(self, tokenizer: "Tokenizer") -> list[int]:
        return tokenizer.encode(self.render()).ids


def prompts(domain: str) -> tuple[Prompt, ...]:
    """The prompts of one domain, which are not in the training texts."""
    if domain not in DOMAINS:
        raise UsageError(f"no domain is called {domain!r}; choose one of {', '.join(DOMAINS)}")
    return _all_prompts()[domain]


def asked_by_people() -> tuple[Prompt, ...]:
    """Typical questions to a small chat model; each is a separate domain."""
    return _all_prompts()[ASKED_BY_PEOPLE]


@cache
def _all_prompts() -> dict[str, tuple[Prompt, ...]]:
    source = Path(str(resources.files(__package__))) / "prompts.json"
    records: dict[str, list[dict[str, Any]]] = json.loads(source.read_text("utf-8"))
    return {
        key: tuple(prompt_of(str(record.get("domain", key)), record) for record in own)
        for key, own in records.items()
    }


def prompt_of(domain: str, record: Mapping[str, Any]) -> Prompt:
    messages = tuple(Message(turn["role"], turn["content"]) for turn in record.get("messages", ()))
    return Prompt(domain, messages, record.get("text", ""))
