"""The project's own prompts, in the form the embedded models know."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosine_node.zoo.family import DOMAINS
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    # Commands import this module, and none of them a tokenizer.
    from tokenizers import Tokenizer

ASKED_BY_PEOPLE = "people"
"""The key of prompts of no domain."""

END = "<|endoftext|>"
"""The token that begins and ends every text of the family's training."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is "user", "assistant" or "system"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that waits for the assistant, or the opening of a plain text."""

    domain: str
    messages: tuple[Message, ...] = ()
    text: str = ""

    def render(self) -> str:
        """The text the target continues, special tokens included; equal to the chat template's own."""
        if self.text:
            return END + self.text
        turns = [
            f"<|{message.role}|>{message.content}{END if message.role == 'assistant' else ''}"
            for message in self.messages
        ]
        return END + "".join(turns) + "<|assistant|>"

    @property
    def asked(self) -> str | list[dict[str, str]]:
        """The prompt as a client takes it: text, or chat messages."""
        return [{"role": message.role, "content": message.content} for message in self.messages] or self.text

    @property
    def last(self) -> str:
        """What was said last."""
        return self.messages[-1].content if self.messages else self.text

    def token_ids(self, tokenizer: "Tokenizer") -> list[int]:
        """The rendered prompt as token ids."""
        return tokenizer.encode(self.render()).ids


def prompts(domain: str) -> tuple[Prompt, ...]:
    """The project's own prompts for one domain; none of them is taken from the training texts."""
    if domain not in DOMAINS:
        raise UsageError(f"no domain is called {domain!r}; choose one of {', '.join(DOMAINS)}")
    return _all_prompts()[domain]


def asked_by_people() -> tuple[Prompt, ...]:
    """What people ask of a small chat model, of several kinds; each is its own domain."""
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
    """The prompt of a record of texts: its messages as they are, or its text."""
    messages = tuple(Message(turn["role"], turn["content"]) for turn in record.get("messages", ()))
    return Prompt(domain, messages, record.get("text", ""))
