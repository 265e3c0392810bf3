"""A transformers model that runs packed passes over all rows at once."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cosine_engine.base import Row
from cosine_engine.forward.attention import ATTENTION_NAME, pack_attention
from cosine_engine.forward.cuda_graphs import CudaGraphs
from cosine_engine.forward.flat_decoder import FlatDecoder
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.partial_model import part_of
from cosine_engine.forward.pass_features import PassFeatures
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.forward.pass_plan import DecoderPlan, PassPlan, PathPlan, stale_slots
from cosine_engine.forward.row_tiles import USUAL_PADDING, Padding, RowTileSet, tile_experts
from cosine_engine.kv_pool import WindowPages
from cosine_engine.tree import Feeds, SequenceTree


class PackedModel(PassModel):
    """Wraps a causal LM for packed passes over a pool of `slots` token slots.

    The model is switched to `cosine_packed` attention and eval mode, and one token allocates the pool.
    With rectangles, passes of known decoders are padded to shape buckets with CUDA graphs. With `padding.tiles`
    (`invariance_self_test`), the model is deterministic: a token's logits depend bit for bit only on its own path.
    The pool holds the latents of layers with latent attention.
    Layers with a sliding window use the pages of `windows`, if given. Raises `UnsupportedModel`.
    """

    attention_name = ATTENTION_NAME

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        padding: Padding = USUAL_PADDING,
        windows: WindowPages | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        pack_attention(model)
        self.flat = FlatDecoder.of(model)
        features = PassFeatures(model, feature_layers, slots=slots, is_flat=self.flat is not None)
        super().__init__(model, KvStore(slots=slots, windows=windows), features)
        pads_rows, tiles = padding.to_rectangle, padding.tiles
        self._pads_rows = self.device.type == "cuda" if pads_rows is None else pads_rows
        self._tiles = tiles
        self._graphs: CudaGraphs | None = None
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.vocab_tokens = self._run_first_token()
        if tiles is not None:
            tile_experts(self.model, tiles.products)
        elif self._pads_rows and self.flat is not None and self.flat.is_capturable and part_of(model) is None:
            # Graphs contain addresses of the pool, which is allocated by now.
            self._graphs = CudaGraphs(self.flat, self.store, self.features, self.device)

    def logits(
        self, feeds: Feeds, *, wanted: list[int], entering: Tensor | None = None, store: KvStore | None = None
    ) -> Tensor:
        """Run a pass as `PassModel.logits` does.

        A part of a model without the first layer takes the activations `entering` [tokens, hidden]. One without the
        last layer returns the activations that leave it at all positions. `store` is the part of the pool to which
        the slots refer. Default: the whole pool.
        """
        with self._passing():
            if self._tiles is not None:
                return self._deterministic_logits(feeds, wanted, self._tiles)
            plan = PassPlan(
                feeds,
                store=self.store if store is None else store,
                device=self.device,
                pads_rows=self._pads_rows,
                is_abandoned=self._is_abandoned,
            )
            logits = None if self._graphs is None else self._graphs.logits(plan, wanted)
            if logits is None:
                # The output projection is a large share of a small model, so it is computed only where wanted.
                logits = self._decode(plan, wanted if len(wanted) < len(plan.tokens) else None, entering)
                self.features.keep(plan.slots)
            return logits

    def _deterministic_logits(self, feeds: Feeds, wanted: list[int], tiles: RowTileSet) -> Tensor:
        stale = stale_slots(feeds)
        if len(stale):
            self.store.clear(stale)
        logits = []
        for start, piece in _pieces(feeds, tiles.products.cut(sum(len(row.tokens) for _, row in feeds))):
            plan = PathPlan(
                piece, store=self.store, device=self.device, tiles=tiles, is_abandoned=self._is_abandoned
            )
            asked = [number - start for number in wanted if start <= number < start + len(plan.slots)]
            # The output projection is a product as well; its padding repeats the last row.
            padding = tiles.products.padded(len(asked)) - len(asked)
            logits.append(self._decode(plan, asked + asked[-1:] * padding)[: len(asked)])
            self.features.keep(plan.slots)
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    def _decode(self, plan: DecoderPlan, wanted: list[int] | None, entering: Tensor | None = None) -> Tensor:
        """Return logits [wanted, vocab] at some positions of a pass. Default: all."""
        keep = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=self.device)
        if self.flat is not None:
            return self.flat(plan, keep, entering, self.features.seen)
        extra = {"logits_to_keep": keep} if keep is not None and self._keeps_logits else {}
        if entering is not None:
            extra["entering"] = entering
        output: Tensor = self.model(
            input_ids=plan.input_ids, position_ids=plan.position_ids, use_cache=False, plan=plan, **extra
        ).logits[0]
        return output if keep is None or self._keeps_logits else output[keep]


def _pieces(feeds: Feeds, sizes: Sequence[int]) -> Iterator[tuple[int, Feeds]]:
    """Cut a pass into pieces of `sizes` tokens; return each with the number of its first token in the pass."""
    start = 0
    piece: list[tuple[SequenceTree, Row]] = []
    coming = iter(sizes)
    room = tokens = next(coming)
    for tree, row in feeds:
        taken = 0
        while taken < len(row.tokens):
            part = row.part(taken, taken + room)
            piece.append((tree, part))
            taken += len(part.tokens)
            room -= len(part.tokens)
            if not room:
                yield start, piece
                start, piece = start + tokens, []
                room = tokens = next(coming, 0)
    if piece:
        yield start, piece
