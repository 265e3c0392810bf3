"""The PyTorch engine around a Hugging Face causal LM."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_engine import logits_engine
from cosine_engine.base import Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.forward.pass_features import KeptFeatures
from cosine_engine.forward.row_tiles import USUAL_PADDING, Padding
from cosine_engine.forward.support import context_tokens, numerics
from cosine_engine.kv_pool import PagePool, WindowPages
from cosine_engine.logits_engine import LogitsEngine
from cosine_engine.torch import sampling
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.tree import Feeds
from cosine_engine.vocabulary import ALL_TOKENS, KnownTokens
from cosine_protocol.numerics import DETERMINISTIC

Floats = npt.NDArray[np.float32]


def row_results(feeds: Feeds, logits_of: Callable[[list[int]], Tensor]) -> list[RowResult]:
    """Run a pass of PyTorch over rows in their trees and return their results."""
    return logits_engine.row_results(feeds, logits_of, sampling)


class TorchEngine(LogitsEngine):
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
        known: KnownTokens = ALL_TOKENS,
        grammars: Grammars | None = None,
        padding: Padding = USUAL_PADDING,
        windows: WindowPages | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        """`PackedModel` describes `padding`, `windows` and `feature_layers`.

        Without `windows`, which require packed passes, layers with a sliding window hold all tokens.
        """
        pool = PagePool(tokens=pool_tokens, windows=windows)
        self._passes = way.pass_model(
            model,
            slots=pool.capacity_tokens,
            padding=padding,
            windows=windows,
            feature_layers=feature_layers,
        )
        is_deterministic = way is PassWay.COMPILED or padding.tiles is not None
        super().__init__(
            pool,
            sampling,
            vocab_tokens=self._passes.vocab_tokens,
            context_tokens=context_tokens(model.config),
            numerics=numerics(model) + (DETERMINISTIC if is_deterministic else ""),
            known=known,
            grammars=grammars,
        )

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
        with torch.inference_mode():
            return super().forward(rows)

    def pass_logits(self, feeds: Feeds, wanted: list[int]) -> Tensor:
        return self._passes.logits(feeds, wanted=wanted)

    def logits(self, rows: Sequence[Row]) -> list[Floats]:
        """Run one pass as `forward`; return copies of the logits [vocab] after each token of the rows."""
        with self.feeding(rows) as feeds, torch.inference_mode():
            wanted = list(range(sum(len(row.tokens) for row in rows)))
            return list(self.pass_logits(feeds, wanted).float().cpu().numpy().copy())
