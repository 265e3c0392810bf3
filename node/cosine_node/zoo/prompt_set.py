"""Prompts in the form the embedded models know: the project's own, or held-out ones from a folder."""

import json
import lzma
import random
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cosine_node.zoo.family import DOMAINS
from cosine_protocol.errors import UsageError

END = "<|endoftext|>"
"""The token that begins and ends every text of the family's training."""
# For quick tests: prompts long enough to show their domain, with enough text left to continue.
OPENING_TOKENS = 48
SHORTEST_REST_TOKENS = 24
LONGEST_PROMPT_TOKENS = 224


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

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The rendered prompt as token ids."""
        return tokenizer.encode(self.render()).ids


def prompts(domain: str) -> tuple[Prompt, ...]:
    """The project's own prompts for one domain; none of them is taken from the training texts."""
    _check_domain(domain)
    return tuple(_prompt(domain, record) for record in _prompt_records()[domain])


def corpus_prompts(folder: Path, domain: str, count: int, seed: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Up to `count` held-out prompts, as token ids, from `DOMAIN.dev.jsonl.xz` in a corpora folder.

    A conversation is cut before one of the assistant's turns; of a plain text the first tokens are taken.
    Records too short to leave a continuation, or too long for a quick test, are passed over.
    """
    _check_domain(domain)
    chooser = random.Random(seed)
    path = folder / f"{domain}.dev.jsonl.xz"
    if not path.is_file():
        raise UsageError(f"no held-out texts at {path}; give a folder that holds DOMAIN.dev.jsonl.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    chooser.shuffle(records)
    found: list[list[int]] = []
    for record in records:
        if len(found) == count:
            break
        if "text" in record:
            token_ids = tokenizer.encode(END + record["text"]).ids
            if len(token_ids) > OPENING_TOKENS + SHORTEST_REST_TOKENS:
                found.append(token_ids[: OPENING_TOKENS + 1])
            continue
        messages = record["messages"]
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        before = messages[: chooser.choice(answers)]
        token_ids = _prompt(domain, {"messages": before}).token_ids(tokenizer)
        if len(token_ids) <= LONGEST_PROMPT_TOKENS:
            found.append(token_ids)
    return found


def _prompt(domain: str, record: dict[str, Any]) -> Prompt:
    messages = tuple(Message(turn["role"], turn["content"]) for turn in record.get("messages", ()))
    return Prompt(domain, messages, record.get("text", ""))


def _check_domain(domain: str) -> None:
    if domain not in DOMAINS:
        raise UsageError(f"no domain is called {domain!r}; choose one of {', '.join(DOMAINS)}")


@cache
def _prompt_records() -> dict[str, list[dict[str, Any]]]:
    source = Path(str(resources.files(__package__))) / "prompts.json"
    records: dict[str, list[dict[str, Any]]] = json.loads(source.read_text("utf-8"))
    return records
