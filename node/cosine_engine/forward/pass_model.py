"""The models that run the passes of an engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from cosine_engine.base import OutOfMemory, PassAbandoned
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.partial_model import part_of
from cosine_engine.forward.pass_features import PassFeatures
from cosine_engine.forward.pass_plan import separate_feed
from cosine_engine.pool_size import TokenBytes
from cosine_engine.tree import Feeds

MEMORY_WORDS: Final = ("can't allocate memory", "not enough memory")
"""Texts of the plain `RuntimeError` that PyTorch raises when a CPU's memory is exhausted."""


def lacks_memory(error: BaseException) -> bool:
    """True for an error that PyTorch or Python raises when memory is exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in MEMORY_WORDS)


class PassModel(ABC):
    """A causal LM that runs passes over a pool of token slots, and keeps `features` of its layers."""

    attention_name: ClassVar[str]
    """The model's attention implementation in these passes."""
    vocab_tokens: int

    def __init__(self, model: Any, store: KvStore, features: PassFeatures) -> None:
        self.model = model.eval()
        self.device: torch.device = model.device
        self.store = store
        self.features = features
        self._stop = np.zeros(2, np.int64)
        """Its first number is 1 after `abandon`; the other is for kernels."""

    @property
    def token_bytes(self) -> TokenBytes:
        """Memory per token slot, with its share of everything else that grows with the pool."""
        stored = self.store.token_bytes
        return replace(stored, total=stored.total + self.features.token_bytes)

    @abstractmethod
    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        """Feed rows that are already in their trees; return logits [wanted, vocab] at these positions of the pass.

        Raises `PassAbandoned` after `abandon`, and `OutOfMemory`.
        """

    def abandon(self) -> None:
        """Stop the current pass before its next layer. Thread-safe."""
        self._stop[0] = 1

    def _is_abandoned(self) -> bool:
        return bool(self._stop[0])

    def _check(self) -> None:
        """Raise `PassAbandoned` if the pass was abandoned."""
        if self._is_abandoned():
            raise PassAbandoned("The pass was abandoned.")

    def _run_first_token(self) -> int:
        """Run one token, which allocates the pool; return the size of the vocabulary."""
        windows = self.store.windows
        if windows is not None:
            windows.take(0)
        width = self.logits([separate_feed([0])], wanted=[0]).shape[1]
        if windows is not None:
            windows.leave(0)
            windows.clear(0)
        # A part of a model may have no output layer.
        return width if part_of(self.model) is None else int(self.model.config.get_text_config().vocab_size)

    @contextmanager
    def _passing(self) -> Iterator[None]:
        # A late `abandon` of the previous pass must not stop this one.
        self._stop[0] = 0
        try:
            with torch.inference_mode():
                yield
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            raise OutOfMemory("The device has no memory left for a pass.") from error
