"""A target's answers, with its likeliest tokens at each position, and the folder where they are kept."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

SHARD_ANSWERS: Final = 64
"""Answers of a file, which an interruption may lose."""
COUNTED_ANSWERS: Final = 256
"""Answers whose tokens are counted at once, which bounds memory."""
SAY_EVERY_S: Final = 20.0
"""Interval between two lines of progress."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer: the tokens of the prompt and of the answer, including an end token.

    `likely_ids` [tokens, k] are the target's likeliest tokens at each position and `likely_logs` the logs of their
    probabilities at temperature 1; k is 0 if only the text is known.
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
    """A question in tokens, and the sampling of its answer."""

    question: int
    domain: str
    tokens: tuple[int, ...]
    sampling: Sampling

    def answer(
        self, tokens: tuple[int, ...], likely_ids: NDArray[np.int32], likely_logs: NDArray[np.float16]
    ) -> Answer:
        """Return the answer to this prompt."""
        return Answer(self.question, self.domain, self.sampling, self.tokens, tokens, likely_ids, likely_logs)


class AnswerStore:
    """Answers in a folder, in files that never change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Add an answer; it is written with `SHARD_ANSWERS` others, or by `flush`."""
        self._waiting.append(answer)
        if len(self._waiting) >= SHARD_ANSWERS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting answers."""
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
        """Return all answers on disk. Raises `UsageError` for a damaged file."""
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
    """Return all answers in `folder`, once `ask` has answered the missing `prompts`."""
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
    """Return the vocabulary of the `tokens` most frequent tokens, or of all if they are fewer.

    A token counts once for each time it was written and each prompt that contains it, and by its probability where
    it was likely. With `shares`, the frequencies of each domain are weighted by them.
    """
    ids = (max((*one.prompt, *one.tokens, one.likely_ids.max(initial=0))) for one in answers)
    size = 1 + int(max(ids, default=0))
    frequencies = np.zeros(size) if shares else _counts(answers, size)
    for domain, share in shares.items():
        counts = _counts([answer for answer in answers if answer.domain == domain], size)
        frequencies += share * counts / max(1.0, counts.sum())
    # Of equally frequent tokens the lower id.
    order = np.argsort(-frequencies, kind="stable")[:tokens]
    return DraftVocabulary(tuple(sorted(order[frequencies[order] > 0].tolist())))


def _counts(answers: Sequence[Answer], size: int) -> NDArray[np.float64]:
    """Return the counts of the first `size` tokens in answers, prompts and likely tokens."""
    counts = np.zeros(size)
    for start in range(0, len(answers), COUNTED_ANSWERS):
        block = answers[start : start + COUNTED_ANSWERS]
        told = [token for answer in block for token in (*answer.tokens, *set(answer.prompt))]
        counts += np.bincount(told, minlength=size)
        likely = np.concatenate([answer.likely_ids.ravel() for answer in block])
        logs = np.concatenate([answer.likely_logs.ravel() for answer in block])
        counts += np.bincount(likely, np.exp(logs.astype(np.float64)), minlength=size)
    return counts
