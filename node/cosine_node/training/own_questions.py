"""Questions that a chat model asks itself, so that its drafters need no texts of anybody.

A chat model has learned its users' turns as well as its own: given its chat template up to where a user speaks, it
goes on as a user would (Magpie, arXiv 2406.08464). Its first words would be the same few in most questions, so the
first token is drawn from the likeliest ones by a flattened distribution, and all others by the model's own.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cosine_node.training.answers import Answer, Say, TargetPrompt
from cosine_node.training.local_target import LocalTarget
from cosine_p2p.text.tokenizer import TextCodec
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

DOMAIN: Final = "self"
"""What its own questions are about."""
FILE: Final = "questions.jsonl"
FIRST_TOKENS: Final = 160
"""SmolLM2 begins 95 % of its questions with one of so many tokens."""
FLATNESS: Final = 0.35
"""The exponent of their probabilities: 'I' and 'Can' begin 66 % of SmolLM2's questions, and so 5 %."""
SHORTEST_CHARACTERS: Final = 12
"""What is shorter asks nothing."""
ALIKE_WORDS: Final = 4
MOST_ALIKE: Final = 24
"""Questions kept that begin with the same so many words."""
WRITTEN_FOR_EACH: Final = 1.25
"""Questions written for each that is kept: others repeat one, are cut off, or begin like too many."""


def write_own_questions(
    target: LocalTarget, codec: TextCodec, folder: Path, *, count: int, seed: int, say: Say
) -> Path:
    """A file of so many of the target's own questions in a folder; what an earlier call has written there counts.

    Raises `UsageError` for a model without a chat template, or whose template does not tell where a user speaks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    kept = OwnQuestions(_read(file))
    opening = opening_of(codec)
    firsts = target.likely_after(opening, FIRST_TOKENS)
    while len(kept) < count:
        missing = round(WRITTEN_FOR_EACH * (count - len(kept))) + 1
        before = len(kept)
        with file.open("a", encoding="utf-8") as out:
            for number, text in _written(
                target, codec, opening, firsts, seed=seed, first=kept.tried, count=missing
            ):
                kept.tried = max(kept.tried, number + 1)
                if len(kept) < count and kept.take(text):
                    message = {"role": "user", "content": text}
                    line = {"domain": DOMAIN, "number": number, "messages": [message]}
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
                    if len(kept) % 100 == 0:
                        out.flush()
                        say(f"{len(kept)} of {count} questions")
        if len(kept) == before:
            raise UsageError("The target writes no questions of its own: it does not end what a user says.")
    return file


class OwnQuestions:
    """Questions without those that were there before, and without too many that begin alike."""

    def __init__(self, lines: Sequence[tuple[int, str]] = ()) -> None:
        self._known: set[str] = set()
        self._beginnings: Counter[str] = Counter()
        self.tried = max((number + 1 for number, _ in lines), default=0)
        for _, text in lines:
            self.take(text)

    def __len__(self) -> int:
        return len(self._known)

    def take(self, text: str) -> bool:
        """Add a question; False if it is not worth asking."""
        words = text.casefold().split()
        whole, beginning = " ".join(words), " ".join(words[:ALIKE_WORDS])
        is_new = whole not in self._known and self._beginnings[beginning] < MOST_ALIKE
        if len(text) < SHORTEST_CHARACTERS or not is_new:
            return False
        self._known.add(whole)
        self._beginnings[beginning] += 1
        return True


def opening_of(codec: TextCodec) -> tuple[int, ...]:
    """A chat's tokens up to where the user speaks. Raises `UsageError`."""
    chats = [codec.encode_chat([{"role": "user", "content": said}]) for said in ("?", "1", "x")]
    shared = next((i for i, tokens in enumerate(zip(*chats, strict=False)) if len(set(tokens)) > 1), 0)
    if not shared:
        raise UsageError("The target's chat template tells nothing of where a user speaks; give --texts.")
    return chats[0][:shared]


def _written(
    target: LocalTarget,
    codec: TextCodec,
    opening: tuple[int, ...],
    firsts: Sequence[tuple[int, float]],
    *,
    seed: int,
    first: int,
    count: int,
) -> Iterator[tuple[int, str]]:
    """Questions with their numbers, as they come; those that do not end are left out."""
    tokens, shares = [token for token, _ in firsts], [chance**FLATNESS for _, chance in firsts]
    begun = {
        number: random.Random(f"{seed} {number}").choices(tokens, shares)[0]
        for number in range(first, first + count)
    }
    prompts = (
        TargetPrompt(number, DOMAIN, (*opening, token), Sampling(temperature=1.0, seed=number))
        for number, token in begun.items()
    )
    for answer in target.answers(prompts):
        if target.has_ended(answer):
            yield answer.question, _text(codec, begun[answer.question], answer)


def _text(codec: TextCodec, first: int, answer: Answer) -> str:
    return codec.decode((first, *answer.tokens[:-1])).strip()


def _read(file: Path) -> list[tuple[int, str]]:
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [(line["number"], line["messages"][0]["content"]) for line in lines]
