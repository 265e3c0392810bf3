"""The ways in which a model's passes can be run."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from cosine_engine.compiled.model import CompiledModel
from cosine_engine.forward.cached_model import CachedModel
from cosine_engine.forward.packed_model import PackedModel
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.forward.support import UnsupportedModel


class PassWay(Enum):
    """A way to run a model's passes, the fastest first; its value completes the sentence "models run with ..."."""

    COMPILED = "compiled passes"
    PACKED = "packed passes"
    CACHED = "their own attention, request by request"
    STEPPED = "their own layers, request by request and token by token"

    @property
    def is_packed(self) -> bool:
        """True if one forward serves all rows of a pass."""
        return self in (PassWay.COMPILED, PassWay.PACKED)

    def pass_model(self, model: Any, *, slots: int, feature_layers: Sequence[int] = (), **packed: Any) -> PassModel:
        """Wrap a model to run its passes in this way over a pool of `slots` token slots.

        `packed` are further arguments of `PackedModel`, which other ways ignore. Raises `UnsupportedModel`.
        """
        if self is PassWay.COMPILED:
            return CompiledModel(model, slots=slots, feature_layers=feature_layers, windows=packed.get("windows"))
        if self is PassWay.PACKED:
            return PackedModel(model, slots=slots, feature_layers=feature_layers, **packed)
        is_stepped = self is PassWay.STEPPED
        if feature_layers and is_stepped:
            raise UnsupportedModel(
                model.config.model_type, f"a draft head cannot read models that run with {self.value}"
            )
        return CachedModel(model, slots=slots, is_stepped=is_stepped, feature_layers=feature_layers)
