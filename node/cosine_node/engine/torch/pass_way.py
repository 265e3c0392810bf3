"""The ways in which a model's passes can be run."""

from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from cosine_node.engine.kv_pool import WindowPages
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.torch.cached_model import CachedModel
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_plan import Feeds
from cosine_node.engine.torch.row_tiles import RowTileSet


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


class PassWay(Enum):
    """A way to run a model's passes, the fastest first; its value names it in a sentence about such models."""

    PACKED = "packed passes"
    EXPANDED = "packed passes over expanded keys and values"
    CACHED = "their own attention, request by request"
    STEPPED = "their own layers, request by request and token by token"

    @property
    def is_packed(self) -> bool:
        """True where one forward serves all rows of a pass."""
        return self in (PassWay.PACKED, PassWay.EXPANDED)

    def pass_model(
        self,
        model: Any,
        *,
        slots: int,
        pads_rows: bool | None = None,
        tiles: RowTileSet | None = None,
        windows: WindowPages | None = None,
    ) -> PassModel:
        """A model that runs its passes this way; the other arguments are `PackedModel`'s, packed ways have them.

        Raises `UnsupportedModel`.
        """
        if self.is_packed:
            return PackedModel(
                model,
                slots=slots,
                pads_rows=pads_rows,
                tiles=tiles,
                keeps_latents=self is PassWay.PACKED,
                windows=windows,
            )
        return CachedModel(model, slots=slots, is_stepped=self is PassWay.STEPPED)
