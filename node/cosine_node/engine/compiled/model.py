"""A transformers model that runs compiled passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.compiled.decoder import CompiledDecoder, CompiledPass
from cosine_node.engine.compiled.layers import PassTokens, Paths
from cosine_node.engine.forward.kv_store import KvStore
from cosine_node.engine.forward.pass_features import PassFeatures
from cosine_node.engine.forward.pass_model import PassModel
from cosine_node.engine.forward.pass_plan import Feeds
from cosine_node.engine.kv_pool import WindowPages


class CompiledModel(PassModel):
    """Wraps a causal LM that `is_compilable` for compiled passes over a pool of `slots` token slots.

    A token's logits depend bit for bit only on its own path. Layers with a sliding window use the pages of
    `windows`, if given.
    """

    attention_name = "eager"

    def __init__(
        self, model: Any, *, slots: int, windows: WindowPages | None = None, feature_layers: Sequence[int] = ()
    ) -> None:
        self._decoder = CompiledDecoder(model)
        features = PassFeatures(model, feature_layers, slots=slots, is_flat=True)
        super().__init__(model, KvStore(slots=slots, windows=windows), features)
        self.vocab_tokens = self._run_first_token()

    def logits(
        self, feeds: Feeds, *, wanted: list[int], entering: Tensor | None = None, store: KvStore | None = None
    ) -> Tensor:
        """Run a pass as `PackedModel.logits` does."""
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        slots = np.array([node.slot for node in nodes], dtype=np.int64)
        given = CompiledPass(
            input_ids=torch.tensor([[token for _, row in feeds for token in row.tokens]], dtype=torch.int64),
            position_ids=torch.tensor([[node.index for node in nodes]], dtype=torch.int64),
            tokens=PassTokens(slots, Paths.of(feeds), self.store if store is None else store, self._stop),
            check=self._check,
        )
        with self._passing():
            found = self._decoder(given, wanted, entering, self.features.seen)
            self.features.keep(slots)
            return found
