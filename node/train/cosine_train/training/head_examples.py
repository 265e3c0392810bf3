"""The answers that a draft head learns from, in batches with little padding."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.answers import Answer


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """Padded `tokens` [rows, tokens] of the target, and its likely next tokens.

    `likely` [rows, tokens, k] are the head's own ids, -1 for none, `chances` their probabilities, 0 before the
    answer.
    """

    tokens: Tensor
    likely: Tensor
    chances: Tensor


class HeadExamples:
    """Answers in batches of about `tokens` tokens, similar lengths together, each once an epoch.

    The same seed and step give the same batch.
    """

    def __init__(
        self, answers: Sequence[Answer], vocabulary: DraftVocabulary, *, tokens: int, seed: int, device: str = "cpu"
    ) -> None:
        self._answers = answers
        self._tokens = tokens
        self._seed = seed
        self._device = device
        most = max((int(answer.likely_ids.max(initial=0)) for answer in answers), default=0)
        self._own = np.full(max(most, *vocabulary.target_ids) + 1, -1, np.int64)
        self._own[np.array(vocabulary.target_ids)] = np.arange(len(vocabulary.target_ids))
        self._epoch, self._batches = 0, self._shuffled(0)

    def batch(self, step: int) -> HeadBatch:
        """Return the batch of a step."""
        epoch, place = divmod(step, len(self._batches))
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        return self._padded([self._answers[i] for i in self._batches[place]])

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """Return the numbers of the answers of each batch; all epochs have equally many."""
        chooser = random.Random(f"{self._seed} {epoch}")
        lengths = [len(answer.prompt) + len(answer.tokens) for answer in self._answers]
        # Batches of the same lengths but other answers in each epoch.
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], chooser.random()))
        batches: list[list[int]] = [[]]
        for i in order:
            if (len(batches[-1]) + 1) * lengths[i] > self._tokens and batches[-1]:
                batches.append([])
            batches[-1].append(i)
        chooser.shuffle(batches)
        return batches

    def _padded(self, answers: Sequence[Answer]) -> HeadBatch:
        longest = max(len(answer.prompt) + len(answer.tokens) - 1 for answer in answers)
        widest = max(answer.likely_ids.shape[1] for answer in answers)
        tokens = torch.zeros(len(answers), longest, dtype=torch.int64)
        likely = np.full((len(answers), longest, widest), -1, np.int64)
        chances: NDArray[np.float32] = np.zeros((len(answers), longest, widest), np.float32)
        for row, answer in enumerate(answers):
            text = answer.prompt + answer.tokens[:-1]
            tokens[row, : len(text)] = torch.tensor(text)
            own = self._own[answer.likely_ids]
            likely[row, len(answer.prompt) - 1 : len(text)] = own
            shares = np.exp(answer.likely_logs.astype(np.float32))
            chances[row, len(answer.prompt) - 1 : len(text)] = np.where(own >= 0, shares, 0)
        return HeadBatch(
            tokens.to(self._device),
            torch.from_numpy(likely).to(self._device),
            torch.from_numpy(chances).to(self._device),
        )
