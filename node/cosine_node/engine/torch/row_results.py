"""From the logits of a pass to the results of its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cosine_node.engine.base import BadLogits, Choice, Row, RowResult
from cosine_node.engine.sampling import row_queries
from cosine_node.engine.torch.sampling import choose
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.vocabulary import DraftVocabulary

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


def row_results(
    trees: Sequence[SequenceTree],
    rows: Sequence[Row],
    logits_of: Callable[[list[int]], Tensor],
    *,
    vocabulary: DraftVocabulary | None = None,
) -> list[RowResult]:
    """The results of rows in their trees; `logits_of` runs the pass and gives [wanted, vocab] at these positions.

    `vocabulary` is that of a drafter's own ids (`choose`).
    """
    parts, wanted = _row_logits(trees, rows)
    logits = logits_of(wanted)
    scored = logits
    if any(part.scored.start != part.start for part in parts):
        scored = torch.cat([logits[part.scored] for part in parts])
    queries = [row_queries(part.tree, part.row) for part in parts]
    chosen = iter(choose(scored, [query for of_row in queries for query in of_row], vocabulary))
    return [
        part.result(logits, [next(chosen) for _ in of_row]) for part, of_row in zip(parts, queries, strict=True)
    ]


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
