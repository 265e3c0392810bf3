"""The PyTorch engine around a Hugging Face causal LM."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_engine.base import Row, RowResult
from cosine_engine.forward.pass_features import KeptFeatures
from cosine_engine.forward.pass_plan import Feeds
from cosine_engine.forward.row_tiles import RowTileSet
from cosine_engine.forward.support import context_tokens, numerics
from cosine_engine.kv_pool import PagePool, WindowPages
from cosine_engine.paged import PagedEngine
from cosine_engine.sampling import failure_of, row_queries, told_tokens
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.torch.sampling import choose, likelihoods_after
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.numerics import DETERMINISTIC
from cosine_protocol.verify import Likelihood

Floats = npt.NDArray[np.float32]


class TorchEngine(PagedEngine):
    """Implements `cosine_engine.base.Engine` around a model. Not thread-safe.

    Memory for the keys and values of `pool_tokens` tokens, the maximum length of a sequence, is allocated at
    construction and never grows. The model's attention is replaced, so it must not be used elsewhere.
    `load_self_test.find_way` finds the `way` in which a model's passes are exact.
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
        known_tokens: int | None = None,
        windows: WindowPages | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        """`PackedModel` describes `pads_rows`, `tiles`, `windows` and `feature_layers`.

        `vocabulary` is a drafter's own vocabulary. Token ids from `known_tokens` on are never chosen. Without
        `windows`, which require packed passes, layers with a sliding window hold all tokens.
        """
        self._vocabulary, self._known_tokens = vocabulary, known_tokens
        pool = PagePool(tokens=pool_tokens, windows=windows)
        self._passes = way.pass_model(
            model,
            slots=pool.capacity_tokens,
            pads_rows=pads_rows,
            tiles=tiles,
            windows=windows,
            feature_layers=feature_layers,
        )
        super().__init__(
            pool,
            vocab_tokens=self._passes.vocab_tokens,
            context_tokens=min(context_tokens(model.config), pool.capacity_tokens),
            numerics=numerics(model) + (DETERMINISTIC if tiles is not None or way is PassWay.COMPILED else ""),
        )
        self.tells_likelihoods = True

    @property
    def device(self) -> torch.device:
        return self._passes.device

    @property
    def model(self) -> Any:
        """The transformers model, with the attention of the passes."""
        return self._passes.model

    @property
    def embedding(self) -> Tensor:
        """The model's input embedding [tokens, width], which a draft head uses."""
        weight: Tensor = self._passes.model.get_input_embeddings().weight
        return weight.detach()

    def activations(self, sequence: int, first: int, last: int) -> KeptFeatures:
        """Return the features of a prefix's tokens from index `first` up to `last`, for a draft head.

        Raises `LocalProtocolError` for a sequence that is not open.
        """
        return self._passes.features.of(self.tree(sequence).slots[first:last])

    def abandon(self) -> None:
        self._passes.abandon()

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run one pass.

        Raises `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned` and then feeds nothing.
        """
        if not rows:
            return []
        # If a pass fails on the device (out of memory), the sequences are restored.
        with self.feeding(rows) as feeds, torch.inference_mode():
            results = row_results(
                feeds,
                lambda wanted: self._passes.logits(feeds, wanted=wanted),
                vocabulary=self._vocabulary,
                known_tokens=self._known_tokens,
            )
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results

    def logits(self, rows: Sequence[Row]) -> list[Floats]:
        """Perform one pass as `forward`; return copies of the logits [vocab] after each token of the rows."""
        with self.feeding(rows) as feeds, torch.inference_mode():
            wanted = list(range(sum(len(row.tokens) for row in rows)))
            return list(self._passes.logits(feeds, wanted=wanted).float().cpu().numpy().copy())


def row_results(
    feeds: Feeds,
    logits_of: Callable[[list[int]], Tensor],
    *,
    vocabulary: DraftVocabulary | None = None,
    known_tokens: int | None = None,
) -> list[RowResult]:
    """Run a pass over rows in their trees and return their results.

    `logits_of` runs the pass and returns the logits [wanted, vocab] at these positions. `vocabulary` and
    `known_tokens` are those of `choose`.
    """
    wanted: list[int] = []
    # The places of each row's logits among the wanted ones: all of them, and those of scored nodes.
    places: list[tuple[slice, slice]] = []
    position = 0
    for _, row in feeds:
        start = len(wanted)
        first = 0 if row.wants_nll else min(row.scored_from, row.told_from)
        wanted += range(position + first, position + len(row.tokens))
        position += len(row.tokens)
        scored_from = len(wanted) - len(row.tokens) + row.scored_from
        places.append((slice(start, len(wanted)), slice(scored_from, len(wanted))))
    logits = logits_of(wanted)
    scored = logits
    if any(of_row != of_scored for of_row, of_scored in places):
        scored = torch.cat([logits[of_scored] for _, of_scored in places])
    queries = [query for tree, row in feeds for query in row_queries(tree, row)]
    chosen = iter(choose(scored, queries, vocabulary, known_tokens=known_tokens))
    results = []
    for (tree, row), (of_row, _) in zip(feeds, places, strict=True):
        found = [next(chosen) for _ in row.nodes[row.scored_from :]]
        choices = tuple(choice for choice in found if choice is not None)
        nll = None
        if row.wants_nll and len(row.tokens) > 1:
            nll = _mean_nll(logits[of_row][:-1], row.tokens[1:])
        # Only NaN differs from itself.
        if len(choices) < len(found) or nll != nll:
            results.append(RowResult(choices=(), error=failure_of(tree, row)))
        else:
            told: list[Likelihood] = []
            if row.followers:
                told = likelihoods_after(
                    logits[of_row][-len(row.followers) :],
                    told_tokens(row, choices),
                    top=row.top,
                    known_tokens=known_tokens,
                )
            results.append(RowResult(choices=choices, nll=nll, likelihoods=tuple(told)))
    return results


def _mean_nll(logits: Tensor, tokens: Sequence[int]) -> float:
    targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    # Blocks bound the memory of float32 log-probabilities of long prompts.
    blocks = zip(torch.split(logits, 256), torch.split(targets, 256), strict=True)
    losses = [torch.nn.functional.cross_entropy(block.float(), target, reduction="sum") for block, target in blocks]
    return float(torch.stack(losses).sum()) / len(tokens)
