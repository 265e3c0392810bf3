"""The ways in which a model's passes can be run."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from cosine_node.engine.kv_pool import WindowPages
from cosine_node.engine.torch.cached_model import CachedModel
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_model import PassModel
from cosine_node.engine.torch.row_tiles import RowTileSet
from cosine_node.engine.torch.support import UnsupportedModel


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
        feature_layers: Sequence[int] = (),
    ) -> PassModel:
        """A model that runs its passes this way; the other arguments are `PackedModel`'s, packed ways have them.

        The last also whole requests have. Raises `UnsupportedModel`.
        """
        if self.is_packed:
            return PackedModel(
                model,
                slots=slots,
                pads_rows=pads_rows,
                tiles=tiles,
                keeps_latents=self is PassWay.PACKED,
                windows=windows,
                feature_layers=feature_layers,
            )
        is_stepped = self is PassWay.STEPPED
        if feature_layers and is_stepped:
            raise UnsupportedModel(
                model.config.model_type, f"a draft head cannot read models that run with {self.value}"
            )
        return CachedModel(model, slots=slots, is_stepped=is_stepped, feature_layers=feature_layers)
