"""Training batches: random windows of token streams, mixed by weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cosine_lab.training.corpus import Tokens


@dataclass(frozen=True, slots=True)
class Source:
    """A token stream and its share of the batches."""

    tokens: Tokens
    weight: float


class TokenMix:
    """Draws batches of windows; the same seed draws the same batches on every device."""

    def __init__(self, sources: Sequence[Source], window_tokens: int, seed: int, device: str) -> None:
        weights = np.array([source.weight for source in sources])
        self._streams = [to_tensor(source.tokens, device) for source in sources]
        self._shares = weights / weights.sum()
        self._window_tokens = window_tokens
        self._random = np.random.default_rng(seed)

    def batch(self, rows: int) -> Tensor:
        """Windows of one token more than the model reads, so that each position has its next token."""
        chosen = self._random.choice(len(self._streams), rows, p=self._shares)
        return torch.stack([self._window(self._streams[index]) for index in chosen]).long()

    def _window(self, stream: Tensor) -> Tensor:
        start = int(self._random.integers(0, len(stream) - self._window_tokens))
        return stream[start : start + self._window_tokens + 1]


def to_tensor(tokens: Tokens, device: str) -> Tensor:
    """The stream on the device; 32 bits, since indexing kernels do not take unsigned 16."""
    return torch.from_numpy(tokens.astype(np.int32)).to(device)


def even_windows(stream: Tensor, window_tokens: int, rows: int) -> Tensor:
    """Windows spread evenly over a held-out stream, as batches draw them but without chance."""
    last_start = len(stream) - window_tokens - 1
    starts = torch.linspace(0, last_start, rows).long().tolist()
    return torch.stack([stream[start : start + window_tokens + 1] for start in starts]).long()
