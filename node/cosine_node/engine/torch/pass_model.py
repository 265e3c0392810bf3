"""The models that run the passes of an engine."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from cosine_node.engine.base import OutOfMemory
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_features import KeptFeatures, PassFeatures
from cosine_node.engine.torch.pass_plan import Feeds

MEMORY_WORDS: Final = ("can't allocate memory", "not enough memory")
"""PyTorch says one of these of a CPU's memory, in an error of no kind of its own."""


def lacks_memory(error: BaseException) -> bool:
    """True for what PyTorch and Python raise where memory is short."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in MEMORY_WORDS)


class PassModel(ABC):
    """A causal LM over a pool of token slots, with what `features` keeps of its layers beside it."""

    attention_name: ClassVar[str]
    """The attention that the model's configuration names in these passes."""
    vocab_tokens: int

    def __init__(self, model: Any, store: KvStore, features: PassFeatures) -> None:
        self.model = model.eval()
        self.device: torch.device = model.device
        self.store = store
        self._features = features
        self._abandoned = threading.Event()

    @property
    def token_bytes(self) -> TokenBytes:
        """Memory that a token slot takes, with its share of whatever else grows with the pool."""
        stored = self.store.token_bytes
        return replace(stored, total=stored.total + self._features.token_bytes)

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool, and of what stands beside it."""
        return self.store.bytes + self._features.bytes

    @abstractmethod
    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        """Feed rows already in their trees; logits [wanted, vocab] of these positions of the pass.

        Raises `PassAbandoned` once told to, and `OutOfMemory`.
        """

    def activations(self, slots: Sequence[int]) -> KeptFeatures:
        """What some layers made of the tokens in these slots."""
        return self._features.of(slots)

    def abandon(self) -> None:
        """Stop the pass under way between two of its layers; called from another thread."""
        self._abandoned.set()

    @contextmanager
    def _passing(self) -> Iterator[None]:
        # An earlier call for a pass that had just ended must not stop this one.
        self._abandoned.clear()
        try:
            with torch.inference_mode():
                yield
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            raise OutOfMemory("The device has no memory left for a pass.") from error
