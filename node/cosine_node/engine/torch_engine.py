"""The engine on PyTorch, around a Hugging Face causal LM."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import BadLogits, Choice, Row, RowResult
from cosine_node.engine.draft_vocabulary import DraftVocabulary
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.pass_way import PassWay
from cosine_node.engine.recipe import row_queries
from cosine_node.engine.row_tiles import RowTileSet
from cosine_node.engine.sampling import choose
from cosine_node.engine.support import context_tokens, numerics
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.window_pages import WindowPages

NLL_ROWS: Final = 256
"""Bounds memory on long prompts: rows turned into float32 log-probabilities at a time."""


@dataclass(frozen=True, slots=True)
class _RowLogits:
    """One row of a pass: its tree, and where its logits lie, `start` to `stop`, among those that were computed."""

    tree: SequenceTree
    row: Row
    start: int
    stop: int

    @property
    def scored(self) -> slice:
        return slice(self.stop - len(self.row.tokens) + self.row.scored_from, self.stop)

    def result(self, logits: Tensor, chosen: Sequence[Choice | None]) -> RowResult:
        """The row's result, given the logits of the pass and the choices after the scored nodes."""
        choices = tuple(choice for choice in chosen if choice is not None)
        nll = None
        if self.row.wants_nll and len(self.row.tokens) > 1:
            nll = _mean_nll(logits[self.start : self.stop - 1], self.row.tokens[1:])
        # nll is compared with itself because only NaN differs from itself.
        if len(choices) < len(chosen) or nll != nll:
            error = BadLogits(f"The model gave NaN or infinite logits for sequence {self.row.sequence}.")
            return RowResult(choices=(), error=error)
        return RowResult(choices=choices, nll=nll)


class TorchEngine(PagedEngine):
    """Implements `cosine_node.engine.base.Engine` around a model; not thread-safe.

    Memory for the keys and values of `pool_tokens` tokens is allocated at construction and never grows; a sequence
    cannot be longer. The model's attention is switched and it must not be used elsewhere.
    `cosine_node.engine.load_trial` finds the way in which passes are exact for a model;
    `cosine_node.engine.loading.load_engine` asks it.
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
            parts, wanted = _row_logits(trees, rows)
            logits = self._passes.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
            scored = logits
            if any(part.scored.start != part.start for part in parts):
                scored = torch.cat([logits[part.scored] for part in parts])
            queries = [row_queries(part.tree, part.row) for part in parts]
            chosen = iter(choose(scored, [query for of_row in queries for query in of_row], self._vocabulary))
            results = [
                part.result(logits, [next(chosen) for _ in of_row])
                for part, of_row in zip(parts, queries, strict=True)
            ]
            on_error.pop_all()
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results


def _row_logits(trees: Sequence[SequenceTree], rows: Sequence[Row]) -> tuple[list[_RowLogits], list[int]]:
    """Where each row's logits will lie, and the positions of the pass that need logits."""
    parts: list[_RowLogits] = []
    wanted: list[int] = []
    position = 0
    for tree, row in zip(trees, rows, strict=True):
        first = 0 if row.wants_nll else row.scored_from
        start = len(wanted)
        wanted.extend(range(position + first, position + len(row.tokens)))
        parts.append(_RowLogits(tree, row, start, len(wanted)))
        position += len(row.tokens)
    return parts, wanted


def _mean_nll(logits: Tensor, tokens: Sequence[int]) -> float:
    targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    losses = [
        torch.nn.functional.cross_entropy(block.float(), target, reduction="sum")
        for block, target in zip(torch.split(logits, NLL_ROWS), torch.split(targets, NLL_ROWS), strict=True)
    ]
    return float(torch.stack(losses).sum()) / len(tokens)
