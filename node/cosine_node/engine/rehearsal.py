"""A part of a model that is fed by nobody: as an engine, to measure its passes before any chain uses it."""

from collections.abc import Sequence

import torch

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.stage_engine import StageEngine
from cosine_node.engine.stage_model import StageModel


class StageRehearsal:
    """Implements `cosine_node.engine.base.Engine` by a stage alone, whose activations it makes up.

    Only results of the last stage have choices. It takes the whole pool of the model, so there must be no chain.
    """

    def __init__(self, model: StageModel) -> None:
        self._model = model
        self._stage = stage = StageEngine(model, PagePool(tokens=model.slots))
        self.vocab_tokens, self.context_tokens = stage.vocab_tokens, stage.context_tokens
        self.numerics = stage.numerics
        self.open, self.reuse_prefix, self.reserve = stage.open, stage.reuse_prefix, stage.reserve
        self.keep, self.prune, self.abandon, self.release = stage.keep, stage.prune, stage.abandon, stage.release

    @property
    def free_tokens(self) -> int:
        return self._stage.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._stage.cached_tokens

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass. Raises what `StageEngine.forward` raises."""
        entering = None
        if not self._model.layers.is_first:
            shape = sum(len(row.tokens) for row in rows), self._model.hidden_width
            entering = torch.linspace(-1.0, 1.0, shape[0] * shape[1]).reshape(shape)
            entering = entering.to(self._model.device, self._model.dtype)
        found = self._stage.forward(rows, entering)
        if isinstance(found, list):
            return found
        # A card computes on until somebody asks for a number.
        _ = found[-1, -1].item()
        return [RowResult(()) for _ in rows]
