"""Questions that a chat model asks itself, so that its drafters need no other texts.

Given its chat template up to the user's turn, a chat model continues as a user (Magpie, arXiv 2406.08464). The
first token is drawn from the likeliest ones by a flattened distribution, since most questions would begin with the
same words; all others are drawn by the model's distribution, as are the user's further turns after an answer.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer, Say, TargetPrompt
from cosine_train.training.local_target import LocalTarget
from cosine_train.training.questions import Message, Question, read_questions

DOMAIN: Final = "self"
"""The domain of these questions."""
FILE: Final = "questions.jsonl"
FOLLOW_UPS_FILE: Final = "follow-ups.jsonl"
FIRST_TOKENS: Final = 160
"""Number of possible first tokens. SmolLM2 begins 95 % of its questions with one of them."""
FLATNESS: Final = 0.35
"""The exponent of their probabilities: it reduces 'I' and 'Can' from 66 % to 5 % of SmolLM2's questions."""
SHORTEST_CHARACTERS: Final = 12
"""Minimum length of a question."""
ALIKE_WORDS: Final = 4
MOST_ALIKE: Final = 24
"""Maximum number of questions kept that begin with the same `ALIKE_WORDS` words."""
WRITTEN_FOR_EACH: Final = 1.25
"""Questions written per question kept: others are repeated, cut off, or begin like too many."""
FEWEST_WRITTEN: Final = 64
"""Writing ends if none of this number of questions is new."""


def write_own_questions(
    target: LocalTarget, codec: TextTokenizer, folder: Path, *, count: int, seed: int, say: Say
) -> Path:
    """Return a file of `count` of the target's own questions in a folder, including those of an earlier call.

    Raises `UsageError` for a model without a chat template, or without a recognisable user's turn in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    kept = OwnQuestions(_read(file))
    opening = opening_of(codec)
    likely = target.likely_after(opening, FIRST_TOKENS)
    firsts, shares = [token for token, _ in likely], [chance**FLATNESS for _, chance in likely]
    while len(kept) < count:
        missing = max(FEWEST_WRITTEN, round(WRITTEN_FOR_EACH * (count - len(kept))))
        begun = {
            number: _Begun(opening, (random.Random(f"{seed} {number}").choices(firsts, shares)[0],))
            for number in range(kept.tried, kept.tried + missing)
        }
        if not _keep(_written(target, codec, begun), kept, file, most=count, say=say):
            raise UsageError(
                f"The target writes {len(kept)} different questions and no more; give a smaller --questions."
            )
    return file


def write_follow_ups(
    target: LocalTarget,
    codec: TextTokenizer,
    folder: Path,
    questions: Sequence[Question],
    answers: Sequence[Answer],
    *,
    count: int,
    say: Say,
) -> list[Question]:
    """Return the user's further turns after the answers to at most `count` of these questions.

    They are written to a file of a folder, including those of an earlier call. Unfinished answers are left out.
    """
    file = folder / FOLLOW_UPS_FILE
    kept = OwnQuestions(_read(file))
    asked = {question.number: question.asked for question in questions if not isinstance(question.asked, str)}
    chats = [
        (*asked[answer.question], {"role": "assistant", "content": codec.decode(answer.tokens[:-1])})
        for answer in sorted(answers, key=lambda answer: answer.question)
        if answer.question in asked and target.has_ended(answer)
    ]
    begun = {
        number: _Begun(opening_of(codec, chat), (), chat)
        for number, chat in enumerate(chats[:count])
        if number >= kept.tried
    }
    _keep(_written(target, codec, begun), kept, file, most=count, say=say)
    return read_questions(file) if len(kept) else []


@dataclass(frozen=True, slots=True)
class _Begun:
    """A chat in tokens up to the user's turn, the first tokens of this turn, and the messages before."""

    opening: tuple[int, ...]
    first: tuple[int, ...]
    before: tuple[Message, ...] = ()


class OwnQuestions:
    """Different questions, of which only a limited number begin with the same words."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self._known: set[str] = set()
        self._beginnings: Counter[str] = Counter()
        self.tried = max((number + 1 for number, _ in lines), default=0)
        for _, text in lines:
            self.take(text)

    def __len__(self) -> int:
        return len(self._known)

    def take(self, text: str) -> bool:
        """Add a question; return False if it is rejected."""
        words = text.casefold().split()
        whole, beginning = " ".join(words), " ".join(words[:ALIKE_WORDS])
        is_new = whole not in self._known and self._beginnings[beginning] < MOST_ALIKE
        if len(text) < SHORTEST_CHARACTERS or not is_new:
            return False
        self._known.add(whole)
        self._beginnings[beginning] += 1
        return True


def opening_of(codec: TextTokenizer, before: Sequence[Message] = ()) -> tuple[int, ...]:
    """Return a chat's tokens up to the user's turn, after the messages `before`. Raises `UsageError`."""
    chats = [codec.encode_chat([*before, {"role": "user", "content": said}]) for said in ("?", "1", "x")]
    shared = next((i for i, tokens in enumerate(zip(*chats, strict=False)) if len(set(tokens)) > 1), 0)
    if not shared:
        raise UsageError("The target's chat template does not show where a user's turn begins; give --texts.")
    return chats[0][:shared]


def _written(
    target: LocalTarget, codec: TextTokenizer, begun: Mapping[int, _Begun]
) -> Iterator[tuple[int, str, tuple[Message, ...]]]:
    """Yield the number, the text and the messages before of each finished user's turn."""
    prompts = (
        TargetPrompt(number, DOMAIN, one.opening + one.first, Sampling(temperature=1.0, seed=number))
        for number, one in begun.items()
    )
    for answer in target.answers(prompts):
        if target.has_ended(answer):
            one = begun[answer.question]
            yield answer.question, codec.decode((*one.first, *answer.tokens[:-1])).strip(), one.before


def _keep(
    written: Iterator[tuple[int, str, tuple[Message, ...]]], kept: OwnQuestions, file: Path, *, most: int, say: Say
) -> bool:
    """Add accepted questions to a file, until `most` are kept; return False if none was added."""
    before = len(kept)
    with file.open("a", encoding="utf-8") as out:
        for number, text, chat in written:
            kept.tried = max(kept.tried, number + 1)
            if len(kept) < most and kept.take(text):
                line = {
                    "domain": DOMAIN,
                    "number": number,
                    "messages": [*chat, {"role": "user", "content": text}],
                }
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                if len(kept) % 100 == 0:
                    out.flush()
                    say(f"{len(kept)} of {most} questions")
    return len(kept) > before


def _read(file: Path) -> list[tuple[int, str]]:
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [(line["number"], line["messages"][-1]["content"]) for line in lines]
