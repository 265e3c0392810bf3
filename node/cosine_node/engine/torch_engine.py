"""The engine on PyTorch: any Hugging Face causal LM whose only state is attention, in packed passes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import BadLogits, Choice, Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.packed_model import PackedModel
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.sampling import Query, choose
from cosine_node.engine.support import context_tokens, numerics
from cosine_node.engine.tree import SequenceTree

NLL_ROWS: Final = 256
"""Rows turned into float32 log-probabilities at a time, to bound memory on long prompts."""


@dataclass(frozen=True, slots=True)
class _RowLogits:
    """One row's part of a pass: its tree, and where its logits lie in the block that was computed."""

    tree: SequenceTree
    row: Row
    start: int
    stop: int

    @property
    def scored(self) -> slice:
        return slice(self.stop - len(self.row.tokens) + self.row.scored_from, self.stop)


class TorchEngine(PagedEngine):
    """Implements `cosine_node.engine.base.Engine` around a model; not thread-safe.

    Memory for `pool_tokens` tokens is allocated at construction and never grows. The model is switched to
    packed attention and must not be used elsewhere. Whether it is one that packed passes are exact for is
    `cosine_node.engine.probe`'s business; `cosine_node.engine.loading.load_engine` asks it.
    """

    def __init__(self, model: Any, *, pool_tokens: int, gathers: bool | None = None) -> None:
        """`gathers` is `PackedModel`'s."""
        pool = PagePool(tokens=pool_tokens)
        self._packed = PackedModel(model, slots=pool.capacity_tokens, gathers=gathers)
        super().__init__(
            pool,
            vocab_tokens=self._packed.vocab_tokens,
            context_tokens=context_tokens(model.config),
            numerics=numerics(model),
        )

    @property
    def device(self) -> torch.device:
        return self._packed.device

    @property
    def pool_bytes(self) -> int:
        """Memory of the KV pool."""
        return self._packed.store.bytes

    def abandon(self) -> None:
        self._packed.abandon()

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass. Raises `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`: nothing is fed."""
        if not rows:
            return []
        trees = self.feed(rows)
        with self._unfed_on_error(rows), torch.inference_mode():
            shares, wanted = _shares(trees, rows)
            logits = self._packed.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
            results = _results(logits, shares)
        for row, result in zip(rows, results, strict=True):
            if result.error is not None:
                self.prune(row.sequence, row.nodes)
        return results

    @contextmanager
    def _unfed_on_error(self, rows: Sequence[Row]) -> Iterator[None]:
        # A pass may die in the device (out of memory); the sequences then stand as before it.
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if not is_done:
                for row in rows:
                    self.prune(row.sequence, row.nodes)


def _shares(trees: Sequence[SequenceTree], rows: Sequence[Row]) -> tuple[list[_RowLogits], list[int]]:
    """Each row's share of the logits, and the positions of the pass that need logits."""
    shares: list[_RowLogits] = []
    wanted: list[int] = []
    position = 0
    for tree, row in zip(trees, rows, strict=True):
        first = 0 if row.wants_nll else row.scored_from
        start = len(wanted)
        wanted.extend(range(position + first, position + len(row.tokens)))
        shares.append(_RowLogits(tree, row, start, len(wanted)))
        position += len(row.tokens)
    return shares, wanted


def _results(logits: Tensor, shares: Sequence[_RowLogits]) -> list[RowResult]:
    queries = [query for share in shares for query in _queries(share)]
    chosen = iter(choose(_scored(logits, shares), queries))
    return [_result(logits, share, [next(chosen) for _ in _scored_nodes(share)]) for share in shares]


def _scored(logits: Tensor, shares: Sequence[_RowLogits]) -> Tensor:
    if all(share.scored.start == share.start for share in shares):
        return logits
    return torch.cat([logits[share.scored] for share in shares])


def _scored_nodes(share: _RowLogits) -> tuple[int, ...]:
    return share.row.nodes[share.row.scored_from :]


def _queries(share: _RowLogits) -> Iterator[Query]:
    tree, row = share.tree, share.row
    is_penalised = tree.sampling.repetition_penalty != 1
    for name in _scored_nodes(share):
        position = tree.nodes[name].index + 1 - tree.prompt_tokens
        if is_penalised:
            path = [node.token for node in tree.path(name)]
            yield Query(tree.sampling, position, row.candidates, tree.tokens, path)
        else:
            yield Query(tree.sampling, position, row.candidates)


def _result(logits: Tensor, share: _RowLogits, chosen: Sequence[Choice | None]) -> RowResult:
    choices = tuple(choice for choice in chosen if choice is not None)
    nll = None
    if share.row.wants_nll and len(share.row.tokens) > 1:
        nll = _mean_nll(logits[share.start : share.stop - 1], share.row.tokens[1:])
    # nll is compared with itself because only NaN differs from itself.
    if len(choices) < len(chosen) or nll != nll:
        error = BadLogits(f"The model gave NaN or infinite logits for sequence {share.row.sequence}.")
        return RowResult(choices=(), error=error)
    return RowResult(choices=choices, nll=nll)


def _mean_nll(logits: Tensor, tokens: Sequence[int]) -> float:
    targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    losses = [
        torch.nn.functional.cross_entropy(part.float(), target, reduction="sum")
        for part, target in zip(torch.split(logits, NLL_ROWS), torch.split(targets, NLL_ROWS), strict=True)
    ]
    return float(torch.stack(losses).sum()) / len(tokens)
