"""Some layers of a model, with the keys and values of the tokens that they are fed."""

from typing import Any

import torch
from torch import Tensor

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.load_trial import find_way
from cosine_node.engine.packed_model import PackedModel
from cosine_node.engine.pass_model import Feeds
from cosine_node.engine.pass_way import PassWay
from cosine_node.engine.stage_loading import load_part
from cosine_node.engine.support import UnsupportedModel, context_tokens, numerics
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.window_pages import WindowPages
from cosine_node.pool_size import TokenBytes
from cosine_protocol.layer_range import LayerRange
from cosine_protocol.request import Sampling


class StageModel:
    """Layers of a model that follow each other, and a KV pool for them, which is shared out between chains.

    The first layer brings the embedding of tokens, the last one norm and output layer. Not thread-safe but for
    `abandon`.
    """

    def __init__(
        self, model: Any, layers: LayerRange, *, slots: int, way: PassWay, window_slots: int | None = None
    ) -> None:
        """Around a model that `load_part` made, with a pool of so many token slots, rounded up to whole pages.

        With `window_slots` layers with a sliding window have so many instead. Raises `UnsupportedModel` for a model
        whose activations are more than one vector a token.
        """
        pages = -(-slots // PAGE_TOKENS)
        windows = None
        if window_slots is not None:
            # No token is allocated in it: it says how many window slots there are.
            windows = WindowPages(pages=pages, tokens=window_slots, window_tokens=1)
        self._packed = PackedModel(
            model, slots=pages * PAGE_TOKENS, keeps_latents=way is PassWay.PACKED, windows=windows
        )
        self.layers = layers
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.numerics = numerics(model)
        self.vocab_tokens = self._packed.vocab_tokens
        self.context_tokens = context_tokens(model.config)
        self.hidden_width: int = model.config.get_text_config().hidden_size
        self.token_bytes: TokenBytes = self._packed.token_bytes
        self.pool_bytes = self._packed.pool_bytes
        self.weights_bytes = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
        if not layers.is_last and self._leaving_shape() != (1, self.hidden_width):
            raise UnsupportedModel(model.config.model_type, "more than one vector a token goes from layer to layer")

    @classmethod
    def load(
        cls,
        source: str,
        layers: LayerRange,
        *,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        window_slots: int | None = None,
    ) -> "StageModel":
        """These layers of the model in a folder, or by a Hugging Face id, if a trial finds that they run exactly.

        Raises `UsageError`, and its kind `UnsupportedModel` for a model that cannot be run in parts.
        """
        model = load_part(source, layers, dtype=dtype).to(device)
        return cls(model, layers, slots=slots, way=find_way(model), window_slots=window_slots)

    @property
    def module(self) -> Any:
        """The model of transformers that the layers are in."""
        return self._packed.model

    @property
    def slots(self) -> int:
        """Token slots of the pool."""
        return self._packed.store.slots

    @property
    def window_slots(self) -> int | None:
        """Token slots of the pool of layers with a sliding window, where that is one of its own."""
        windows = self._packed.store.windows
        return None if windows is None else windows.slots

    def store(
        self, *, first_slot: int, slots: int, windows: WindowPages | None, first_window_slot: int = 0
    ) -> KvStore:
        """The part of the pool for one chain (`KvStore.part`)."""
        return self._packed.store.part(
            first_slot=first_slot, slots=slots, windows=windows, first_window_slot=first_window_slot
        )

    def run(self, feeds: Feeds, *, store: KvStore, entering: Tensor | None, wanted: list[int]) -> Tensor:
        """Feed rows that are in their trees. Logits [wanted, vocab] where the last layer is here.

        Else the activations [tokens, hidden] of all tokens. Raises `PassAbandoned` and `OutOfMemory`.
        """
        return self._packed.logits(feeds, wanted=wanted, entering=entering, store=store)

    def abandon(self) -> None:
        """Stop the pass under way between two of its layers; called from another thread."""
        self._packed.abandon()

    def _leaving_shape(self) -> tuple[int, ...]:
        tree, row = SequenceTree(sampling=Sampling(), prompt_tokens=0), Row.chain(0, [0])
        tree.add(row, [0])
        return tuple(self._packed.logits([(tree, row)], wanted=[0]).shape)
