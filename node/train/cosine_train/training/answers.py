"""A target's answers, with what else it found likely at each token, and the folder they are kept in."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

SHARD_ANSWERS: Final = 64
"""Answers of a file, the most that an interruption can lose."""
COUNTED_ANSWERS: Final = 256
"""Answers whose tokens are counted at once: soon, and in little memory."""
SAY_EVERY_S: Final = 20.0
"""The time between two lines of progress."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer: the prompt's tokens and its own, the end token included where it came.

    `likely_ids` [tokens, k] are the likeliest tokens of the target at each position and `likely_logs` the logs of
    their probabilities at temperature 1; where only the text is known, k is 0.
    """

    question: int
    domain: str
    sampling: Sampling
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    likely_ids: NDArray[np.int32]
    likely_logs: NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class TargetPrompt:
    """A question in tokens, and how its answer is to be chosen; `given` is one of somebody else, to be read."""

    question: int
    domain: str
    tokens: tuple[int, ...]
    sampling: Sampling
    given: tuple[int, ...] = ()

    def answer(
        self, tokens: tuple[int, ...], likely_ids: NDArray[np.int32], likely_logs: NDArray[np.float16]
    ) -> Answer:
        """What the target has answered, or would have found likely in what was given."""
        return Answer(
            question=self.question,
            domain=self.domain,
            sampling=self.sampling,
            prompt=self.tokens,
            tokens=tokens,
            likely_ids=likely_ids,
            likely_logs=likely_logs,
        )


class AnswerStore:
    """Answers in a folder, in files that are written once and never changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Take an answer; it is on disk once `SHARD_ANSWERS` are, or after `flush`."""
        self._waiting.append(answer)
        if len(self._waiting) >= SHARD_ANSWERS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"answers-{len(self._files()):05d}.npz"
        partial = file.with_suffix(".partial")
        with partial.open("wb") as out:
            np.savez_compressed(out, allow_pickle=False, **_columns(self._waiting))
        partial.rename(file)
        self._waiting = []

    def read(self) -> list[Answer]:
        """Every answer on disk. Raises `UsageError` for a damaged file."""
        return [answer for file in self._files() for answer in _read(file)]

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("answers-*.npz"))


def _columns(answers: Sequence[Answer]) -> dict[str, NDArray[np.generic]]:
    widest = max(answer.likely_ids.shape[1] for answer in answers)
    if any(answer.likely_ids.shape[1] != widest for answer in answers):
        raise ValueError("Answers of one file must come from one kind of target.")
    return {
        "question": np.array([answer.question for answer in answers], np.int64),
        "domain": np.array([answer.domain for answer in answers]),
        "temperature": np.array([answer.sampling.temperature for answer in answers]),
        "seed": np.array([answer.sampling.seed for answer in answers], np.uint64),
        "prompt_tokens": np.array([len(answer.prompt) for answer in answers], np.int32),
        "answer_tokens": np.array([len(answer.tokens) for answer in answers], np.int32),
        "tokens": np.concatenate([np.array(answer.prompt + answer.tokens, np.int32) for answer in answers]),
        "likely_ids": np.concatenate([answer.likely_ids for answer in answers]),
        "likely_logs": np.concatenate([answer.likely_logs for answer in answers]),
    }


def _read(file: Path) -> Iterator[Answer]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
            token, place = 0, 0
            for row, question in enumerate(columns["question"].tolist()):
                prompt_tokens, answer_tokens = (
                    int(columns[f"{part}_tokens"][row]) for part in ("prompt", "answer")
                )
                tokens = tuple(columns["tokens"][token : token + prompt_tokens + answer_tokens].tolist())
                yield Answer(
                    question=question,
                    domain=str(columns["domain"][row]),
                    sampling=Sampling(
                        temperature=float(columns["temperature"][row]), seed=int(columns["seed"][row])
                    ),
                    prompt=tokens[:prompt_tokens],
                    tokens=tokens[prompt_tokens:],
                    likely_ids=columns["likely_ids"][place : place + answer_tokens],
                    likely_logs=columns["likely_logs"][place : place + answer_tokens],
                )
                token += prompt_tokens + answer_tokens
                place += answer_tokens
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{file} is damaged ({error}); delete it, and its answers are asked for again.") from None


def ask_all(
    prompts: Sequence[TargetPrompt],
    folder: Path,
    ask: Callable[[Iterator[TargetPrompt]], Iterator[Answer]],
    say: Say,
) -> list[Answer]:
    """All answers in `folder`, once `ask` has brought those to `prompts` that are missing."""
    store = AnswerStore(folder)
    missing = {(prompt.question, prompt.sampling): prompt for prompt in prompts}
    for answer in store.read():
        missing.pop((answer.question, answer.sampling), None)
    if missing:
        began_s = said_s = time.monotonic()
        done = tokens = 0
        try:
            for answer in ask(iter(missing.values())):
                store.add(answer)
                done, tokens = done + 1, tokens + len(answer.tokens)
                if (now_s := time.monotonic()) - said_s > SAY_EVERY_S:
                    rate, left_s = tokens / (now_s - began_s), (now_s - began_s) * (len(missing) / done - 1)
                    say(f"{done} of {len(missing)} answers, {rate:.0f} tokens/s, about {left_s / 60:.0f} min left")
                    said_s = now_s
        finally:
            store.flush()
    return store.read()


def most_frequent(answers: Sequence[Answer], *, tokens: int, shares: Mapping[str, float]) -> DraftVocabulary:
    """The vocabulary of the `tokens` most frequent tokens, or of fewer where fewer were seen.

    A token counts once for each time it was written and each prompt it is in, and by its probability wherever it
    was likely. With `shares`, frequencies within each domain are weighted by them.
    """
    if not shares:
        frequencies = _counts(answers)
    else:
        frequencies = np.zeros(1)
        for domain, share in shares.items():
            counts = _counts([answer for answer in answers if answer.domain == domain])
            frequencies = _sum(frequencies, share * counts / max(1.0, counts.sum()))
    # The lower id where two are as frequent.
    order = np.argsort(-frequencies, kind="stable")[:tokens]
    return DraftVocabulary(tuple(sorted(order[frequencies[order] > 0].tolist())))


def _counts(answers: Sequence[Answer]) -> NDArray[np.float64]:
    """How often each token was written, was in a prompt or was likely."""
    counts = np.zeros(1)
    for start in range(0, len(answers), COUNTED_ANSWERS):
        block = answers[start : start + COUNTED_ANSWERS]
        told = [token for answer in block for token in (*answer.tokens, *set(answer.prompt))]
        counts = _sum(counts, np.bincount(told).astype(np.float64))
        likely = np.concatenate([answer.likely_ids.ravel() for answer in block])
        logs = np.concatenate([answer.likely_logs.ravel() for answer in block])
        if len(likely):
            counts = _sum(counts, np.bincount(likely, np.exp(logs.astype(np.float64))).astype(np.float64))
    return counts


def _sum(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of two rows of numbers, of which the shorter one goes on with zeros."""
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
