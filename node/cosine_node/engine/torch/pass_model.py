"""The interface of models that run the passes of an engine."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cosine_node.engine.base import Row
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.tree import SequenceTree

Feeds = Sequence[tuple[SequenceTree, Row]]
"""The rows of a pass, each in its tree already."""


class PassModel(Protocol):
    """A causal LM over a pool of token slots."""

    @property
    def attention_name(self) -> str:
        """The attention that the model's configuration names in these passes."""
        ...

    @property
    def model(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_tokens(self) -> int: ...

    @property
    def token_bytes(self) -> TokenBytes:
        """Memory that a token slot takes, with its share of whatever else grows with the pool."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool, and of what stands beside it."""
        ...

    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        """Feed rows already in their trees; logits [wanted, vocab] of these positions of the pass.

        Raises `PassAbandoned` once told to, and `OutOfMemory`.
        """
        ...

    def abandon(self) -> None:
        """Stop the pass under way between two of its layers; called from another thread."""
        ...
