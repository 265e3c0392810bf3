"""The loss by which a drafter learns from a target's answers, its batches, and the measuring of drafters."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosine_engine.base import Choice, Engine, Row
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.load_options import LoadOptions
from cosine_engine.pool_size import PoolSize
from cosine_engine.torch.loading import load_engine
from cosine_engine.vocabulary import ALL_TOKENS, DraftVocabulary, KnownTokens
from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer

BLOCK_BATCHES: Final = 8
"""Batches drawn together and sorted by length, which limits padding."""
POOL_TOKENS: Final = 16_384
"""Drafters are measured along one text at a time, and few are longer."""


@dataclass(frozen=True, slots=True)
class Example:
    """An answer in a drafter's own ids: its tokens, including the prompt, and the target's likely next tokens.

    `likely` [positions, k] are own ids, -1 for none, and `chances` their probabilities, from the end of the prompt.
    """

    domain: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    likely: NDArray[np.int64]
    chances: NDArray[np.float32]

    @classmethod
    def of(cls, answer: Answer, vocabulary: DraftVocabulary) -> "Example":
        """Convert an answer; without likely tokens its own have probability 1."""
        ids, chances = answer.likely_ids, np.exp(answer.likely_logs.astype(np.float32))
        if not ids.shape[1]:
            ids, chances = np.array(answer.tokens, np.int32)[:, None], np.ones((len(answer.tokens), 1), np.float32)
        own = np.array(vocabulary.own_tokens(ids.ravel().tolist()), np.int64).reshape(ids.shape)
        is_known = own < vocabulary.reserved_id
        return cls(
            domain=answer.domain,
            tokens=vocabulary.own_tokens(answer.prompt + answer.tokens[:-1]),
            prompt_tokens=len(answer.prompt),
            likely=np.where(is_known, own, -1),
            chances=np.where(is_known, chances, 0).astype(np.float32),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded `tokens` [rows, tokens], and the scored positions `at`, with `likely` and `chances` of each."""

    tokens: Tensor
    at: tuple[Tensor, Tensor]
    likely: Tensor
    chances: Tensor


class ExampleMix:
    """Draws batches of examples, domains by their shares; the same seed and step give the same batch."""

    def __init__(
        self, examples: Sequence[Example], *, shares: Mapping[str, float], rows: int, seed: int, device: str
    ) -> None:
        """Create a mix. Domains without a share are left out; without shares all examples are equally likely."""
        by_domain: dict[str, list[Example]] = {}
        for example in examples:
            by_domain.setdefault(example.domain if shares else "", []).append(example)
        self._domains = {name: own for name, own in by_domain.items() if not shares or shares.get(name)}
        self._shares = [shares.get(name, 1.0) for name in self._domains]
        self._rows = rows
        self._seed = seed
        self._device = device

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        chooser = random.Random(f"{self._seed} {step // BLOCK_BATCHES}")
        names = chooser.choices(list(self._domains), self._shares, k=self._rows * BLOCK_BATCHES)
        drawn = [chooser.choice(self._domains[name]) for name in names]
        drawn.sort(key=lambda example: len(example.tokens))
        order = chooser.sample(range(BLOCK_BATCHES), BLOCK_BATCHES)
        first = order[step % BLOCK_BATCHES] * self._rows
        return _padded(drawn[first : first + self._rows], self._device)


def distillation_loss(model: Any, batch: Batch) -> Tensor:
    """Return the cross-entropy with the target's distribution over its likely tokens and all others as one.

    It is the forward KL divergence up to the target's entropy, which is constant.
    """
    hidden = model.base_model(input_ids=batch.tokens, use_cache=False)[0]
    logits = model.get_output_embeddings()(hidden[batch.at]).float()
    total = logits.logsumexp(-1)
    # An additional column, which is ignored, receives the writes for -1.
    wide = torch.cat([logits, torch.full_like(logits[:, :1], -torch.inf)], 1)
    ids = torch.where(batch.likely < 0, logits.shape[1], batch.likely)
    named = logits.gather(1, batch.likely.clamp(min=0)) - total[:, None]
    others = wide.scatter(1, ids, -torch.inf).logsumexp(-1) - total
    rest = (1 - batch.chances.sum(-1)).clamp(min=0)
    loss: Tensor = -((batch.chances * named).sum(-1) + rest * others).mean()
    return loss


def _padded(examples: Sequence[Example], device: str) -> Batch:
    longest = max(len(example.tokens) for example in examples)
    widest = max(example.likely.shape[1] for example in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.int64)
    rows, columns = list[int](), list[int]()
    likely, chances = list[NDArray[np.int64]](), list[NDArray[np.float32]]()
    for row, example in enumerate(examples):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        rows += [row] * len(example.likely)
        columns += range(example.prompt_tokens - 1, len(example.tokens))
        missing = ((0, 0), (0, widest - example.likely.shape[1]))
        likely.append(np.pad(example.likely, missing, constant_values=-1))
        chances.append(np.pad(example.chances, missing))
    return Batch(
        tokens.to(device),
        (torch.tensor(rows, device=device), torch.tensor(columns, device=device)),
        torch.from_numpy(np.concatenate(likely)).to(device),
        torch.from_numpy(np.concatenate(chances)).to(device),
    )


def drafter_in(folder: Path, *, vocab_tokens: int, device: str = "auto", pool_tokens: int = POOL_TOKENS) -> Engine:
    """Return an engine around the weights of a folder, in the target's tokens."""
    vocabulary = DraftVocabulary.read(folder)
    known = ALL_TOKENS if vocabulary is None else KnownTokens(vocabulary=vocabulary, target_tokens=vocab_tokens)
    how = LoadOptions(device=device, pool_size=PoolSize(exact_tokens=pool_tokens), known=known)
    return load_engine(ModelFiles.in_folder(folder), how)


def right_choices(drafter: Engine, prompt: tuple[int, ...], tokens: tuple[int, ...], sampling: Sampling) -> int:
    """Return the number of first choices along a target's text that equal its tokens, with the target's noise."""
    choices = choices_along(drafter, prompt, tokens, sampling)
    return sum(choice.token == token for choice, token in zip(choices, tokens, strict=True))


def choices_along(
    drafter: Engine, prompt: tuple[int, ...], tokens: tuple[int, ...], sampling: Sampling
) -> Sequence[Choice]:
    """Return a drafter's choice at each token of a target's text, drawn with the target's noise."""
    sequence = drafter.open(sampling=sampling, prompt_tokens=len(prompt))
    row = Row.chain(sequence, prompt + tokens[:-1], scored_from=len(prompt) - 1)
    try:
        (result,) = drafter.forward([row])
    finally:
        drafter.release(sequence)
    return result.choices
