"""The sequences of one chain at one of its stages: tokens or activations in, activations or results out."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.operations import BadActivations, FeedRows, Operation, apply_to_books
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.row_results import row_results
from cosine_node.engine.stage_model import StageModel


class StageEngine(PagedEngine):
    """One chain's sequences at a stage; several share a `StageModel` by ranges of its slots. Not thread-safe.

    Its pool counts as those of the head and of the other stages of the chain do. So that they stay alike, rows
    whose logits are not finite stay fed: the head prunes them.
    """

    def __init__(
        self,
        model: StageModel,
        pool: PagePool,
        *,
        first_slot: int = 0,
        first_window_slot: int = 0,
        first_sequence: int = 0,
    ) -> None:
        self._model = model
        self._store = model.store(
            first_slot=first_slot,
            slots=pool.capacity_tokens,
            windows=pool.windows,
            first_window_slot=first_window_slot,
        )
        super().__init__(
            pool,
            vocab_tokens=model.vocab_tokens,
            context_tokens=min(model.context_tokens, pool.capacity_tokens),
            numerics=model.numerics,
            first_sequence=first_sequence,
        )

    @property
    def module(self) -> Any:
        """The model of transformers that its layers are in."""
        return self._model.module

    def abandon(self) -> None:
        self._model.abandon()

    def apply(self, operation: Operation, activations: Tensor | None) -> Tensor | list[RowResult] | None:
        """Apply the chain's next operation; for a feed, what `forward` gives."""
        if isinstance(operation, FeedRows):
            return self.forward(operation.rows, activations)
        apply_to_books(self, operation)
        return None

    def forward(self, rows: Sequence[Row], activations: Tensor | None) -> Tensor | list[RowResult]:
        """One pass over at least one row, whose results the last stage gives; others, activations [tokens, hidden].

        `activations`, for all but the first stage, are those of the one before, of all rows' tokens. Raises
        `BadActivations`, `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`: nothing is fed.
        """
        tokens = sum(len(row.tokens) for row in rows)
        self._check(activations, tokens)
        trees = self.feed(rows)
        feeds = list(zip(trees, rows, strict=True))
        with ExitStack() as on_error, torch.inference_mode():
            on_error.callback(self.unfeed, rows)

            def run(wanted: list[int]) -> Tensor:
                return self._model.run(feeds, store=self._store, entering=activations, wanted=wanted)

            is_last = self._model.layers.is_last
            found = row_results(trees, rows, run) if is_last else run(list(range(tokens)))
            on_error.pop_all()
        return found

    def _check(self, activations: Tensor | None, tokens: int) -> None:
        if self._model.layers.is_first:
            if activations is not None:
                raise BadActivations("The first stage takes tokens, not activations.")
            return
        if activations is None or activations.shape != (tokens, self._model.hidden_width):
            shape = "no activations" if activations is None else f"activations of the shape {[*activations.shape]}"
            raise BadActivations(f"{tokens} tokens came with {shape}, not {[tokens, self._model.hidden_width]}.")
        if activations.dtype != self._model.dtype or not bool(torch.isfinite(activations).all()):
            raise BadActivations(f"Activations are no finite numbers in {self._model.numerics}.")
