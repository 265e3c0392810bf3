"""The engine on PyTorch, around a Hugging Face causal LM."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool, WindowPages
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.engine.torch.row_results import row_results
from cosine_node.engine.torch.row_tiles import RowTileSet
from cosine_node.engine.torch.support import context_tokens, numerics
from cosine_node.engine.vocabulary import DraftVocabulary


class TorchEngine(PagedEngine):
    """Implements `cosine_node.engine.base.Engine` around a model; not thread-safe.

    Memory for the keys and values of `pool_tokens` tokens is allocated at construction and never grows; a sequence
    cannot be longer. The model's attention is switched and it must not be used elsewhere.
    `cosine_node.engine.torch.load_self_test` finds the way in which passes are exact for a model;
    `cosine_node.engine.torch.loading.load_engine` asks it.
    """

    def __init__(
        self,
        model: Any,
        *,
        pool_tokens: int,
        way: PassWay = PassWay.PACKED,
        pads_rows: bool | None = None,
        tiles: RowTileSet | None = None,
        vocabulary: DraftVocabulary | None = None,
        windows: WindowPages | None = None,
    ) -> None:
        """`pads_rows`, `tiles` and `windows` are `PackedModel`'s.

        `vocabulary` is that of a drafter's own ids (`choose`). Without `windows`, which no way but packed passes
        may have, layers with a sliding window hold all tokens as well.
        """
        self._vocabulary = vocabulary
        pool = PagePool(tokens=pool_tokens, windows=windows)
        self._passes = way.pass_model(
            model, slots=pool.capacity_tokens, pads_rows=pads_rows, tiles=tiles, windows=windows
        )
        super().__init__(
            pool,
            vocab_tokens=self._passes.vocab_tokens,
            context_tokens=min(context_tokens(model.config), pool.capacity_tokens),
            numerics=numerics(model),
        )

    @property
    def device(self) -> torch.device:
        return self._passes.device

    @property
    def pool_bytes(self) -> int:
        """Memory of the KV pool, and of the recurrent states beside it."""
        return self._passes.pool_bytes

    def abandon(self) -> None:
        self._passes.abandon()

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass. Raises `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`: nothing is fed."""
        if not rows:
            return []
        trees = self.feed(rows)
        with ExitStack() as on_error, torch.inference_mode():
            # A pass may die in the device (out of memory); the sequences then stand as before it.
            on_error.callback(self.unfeed, rows)
            feeds = list(zip(trees, rows, strict=True))
            results = row_results(
                trees, rows, lambda wanted: self._passes.logits(feeds, wanted=wanted), vocabulary=self._vocabulary
            )
            on_error.pop_all()
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results
