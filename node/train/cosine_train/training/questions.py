"""Questions to a target, from JSON lines: conversations cut before an answer, or beginnings of plain texts.

In tokens they become prompts for the target to answer.
"""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.training.answers import TargetPrompt

Message = Mapping[str, str]

SUFFIXES: Final = (".jsonl", ".jsonl.xz")
"""Suffixes of the files that are read."""
HELD_OUT_MARK: Final = ".dev."
"""A file with this in its name has questions for the evaluation only."""
HELD_OUT_EVERY: Final = 20
"""The interval of held-out questions if no file is held out."""
OPENING_CHARACTERS: Final = 240
"""About 50 tokens of a plain text."""
TEMPERATURE: Final = 0.8
"""Temperature of half of the answers; the others are greedy."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that ends with the user, or the beginning of a text, as a client takes it."""

    domain: str
    asked: str | tuple[Message, ...]
    is_held_out: bool = False

    @property
    def number(self) -> int:
        """A number of 63 bits that depends only on `asked`; it names the answers and seeds their noise."""
        asked = self.asked if isinstance(self.asked, str) else [dict(message) for message in self.asked]
        return int.from_bytes(sha256(json.dumps(asked, sort_keys=True).encode()).digest()[:8]) >> 1


def read_questions(source: Path) -> list[Question]:
    """Return the questions of a file, or of all files of a folder, each once, ordered by number.

    A line is `{"messages": [{"role", "content"}...]}` or `{"text": ...}`; its domain is its `domain`, else the
    first part of its file's name. Raises `UsageError`.
    """
    files = [source] if source.is_file() else sorted(file for end in SUFFIXES for file in source.glob(f"*{end}"))
    if not files:
        raise UsageError(
            f"No texts at {source}; give a file, or a folder of files, that end with {SUFFIXES[0]}[.xz]."
        )
    has_held_out = any(HELD_OUT_MARK in file.name for file in files)
    found: dict[int, Question] = {}
    for file in files:
        for record in _records(file):
            domain = str(record.get("domain") or file.name.partition(".")[0])
            if asked := _asked(record):
                question = Question(domain, asked)
                is_held_out = HELD_OUT_MARK in file.name if has_held_out else question.number % HELD_OUT_EVERY == 0
                found.setdefault(question.number, replace(question, is_held_out=is_held_out))
    if not found:
        raise UsageError(f"{source} holds no question: neither messages with an answer nor a text on any line.")
    return [found[number] for number in sorted(found)]


def in_turns(questions: Sequence[Question]) -> list[Question]:
    """Return the same questions with the domains in turn."""
    by_domain: dict[str, list[Question]] = {}
    for question in questions:
        by_domain.setdefault(question.domain, []).append(question)
    ranked = [(place, name, question) for name, own in by_domain.items() for place, question in enumerate(own)]
    return [question for _, _, question in sorted(ranked, key=lambda item: item[:2])]


def prompts_of(
    questions: Sequence[Question], codec: TextTokenizer, *, answers: int, longest_prompt: int, is_asked_twice: bool
) -> list[TargetPrompt]:
    """Return prompts for `answers` answers, domains in turn, each greedy or sampled, or both ways.

    Questions of more than `longest_prompt` tokens are left out.
    """
    found: list[TargetPrompt] = []
    for question in in_turns(questions):
        if len(found) >= answers:
            break
        asked = question.asked
        tokens = codec.encode(asked) if isinstance(asked, str) else codec.encode_chat(asked)
        if not 0 < len(tokens) <= longest_prompt:
            continue
        sampled = Sampling(temperature=TEMPERATURE, seed=question.number)
        ways = [Sampling(), sampled] if is_asked_twice else [sampled if question.number % 2 else Sampling()]
        found += [TargetPrompt(question.number, question.domain, tokens, way) for way in ways]
    return found


def _records(file: Path) -> Iterator[dict[str, Any]]:
    opened = lzma.open if file.suffix == ".xz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise UsageError(f"Line {number} of {file} is no JSON object.")
                    yield record
    except (OSError, ValueError, lzma.LZMAError, EOFError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from None


def _asked(record: Mapping[str, Any]) -> str | tuple[Message, ...]:
    """Return the question, empty if there is none.

    Of a conversation that ends with an answer, the question is the part before one of its answers.
    """
    if isinstance(text := record.get("text"), str):
        opening = text[:OPENING_CHARACTERS]
        return opening if len(opening) == len(text) else opening.rpartition(" ")[0]
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return ""
    turns = [{"role": str(turn.get("role", "")), "content": str(turn.get("content", ""))} for turn in messages]
    if turns and turns[-1]["role"] == "user":
        return tuple(turns)
    ends = [place for place, turn in enumerate(turns) if place and turn["role"] == "assistant"]
    if not ends:
        return ""
    # An answer determined by the conversation.
    return tuple(turns[: ends[sha256(json.dumps(turns).encode()).digest()[0] % len(ends)]])
