"""A transformers model that runs packed passes: plan in, logits out."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import WindowPages
from cosine_node.engine.torch.attention import ATTENTION_NAME, keep_latents, packed_attention
from cosine_node.engine.torch.cuda_graphs import CudaGraphs
from cosine_node.engine.torch.flat_decoder import FlatDecoder
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.partial_model import part_of
from cosine_node.engine.torch.pass_features import PassFeatures
from cosine_node.engine.torch.pass_model import PassModel
from cosine_node.engine.torch.pass_plan import DecoderPlan, Feeds, PassPlan, PathPlan, stale_slots
from cosine_node.engine.torch.row_tiles import RowTileSet, tile_experts
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling


class PackedModel(PassModel):
    """Wraps a causal LM for packed passes over a pool of `slots` token slots.

    Switches the model to `cosine_packed` attention and eval mode, and runs one token through it, which allocates
    the pool and shows the width of the vocabulary. With `pads_rows` short rows are computed as one rectangle, and
    those of known decoders in shape buckets: by default on CUDA. With `tiles` (`invariance_self_test`) it is
    deterministic: a token's logits depend on its own path only, bit for bit. Rows are then padded as these say, and
    never to rectangles. With `keeps_latents` the pool holds the latents of layers that make keys and values from
    some, else what they make. Layers with a sliding window have the pages of `windows`, if given. Raises
    `UnsupportedModel`.
    """

    attention_name = ATTENTION_NAME

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        pads_rows: bool | None = None,
        tiles: RowTileSet | None = None,
        keeps_latents: bool = True,
        windows: WindowPages | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        AttentionInterface.register(ATTENTION_NAME, packed_attention)
        model.set_attn_implementation(ATTENTION_NAME)
        if model.config._attn_implementation != ATTENTION_NAME:
            raise UnsupportedModel(model.config.model_type, "its attention cannot be replaced")
        keep_latents(model, are_kept=keeps_latents)
        self.flat = FlatDecoder.of(model)
        features = PassFeatures(model, feature_layers, slots=slots, is_flat=self.flat is not None)
        super().__init__(model, KvStore(slots=slots, windows=windows), features)
        self._pads_rows = self.device.type == "cuda" if pads_rows is None else pads_rows
        self._tiles = tiles
        self._graphs: CudaGraphs | None = None
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        # One token runs through the model: what comes out is as wide as the vocabulary, where it is logits.
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
        row = Row.chain(0, [0])
        tree.add(row, [0])
        if windows is not None:
            windows.take(0)
        width = self.logits([(tree, row)], wanted=[0]).shape[1]
        if windows is not None:
            windows.leave(0)
            windows.clear(0)
        # A part of a model need not have an output layer to tell by.
        self.vocab_tokens = width if part_of(model) is None else model.config.get_text_config().vocab_size
        if tiles is not None:
            tile_experts(self.model, tiles.products)
        elif self._pads_rows and self.flat is not None and self.flat.is_capturable and part_of(model) is None:
            # Captured passes are from tokens to logits. They hold addresses of the pool, which is allocated by now.
            self._graphs = CudaGraphs(self.flat, self.store, self._features, self.device)

    def logits(
        self, feeds: Feeds, *, wanted: list[int], entering: Tensor | None = None, store: KvStore | None = None
    ) -> Tensor:
        """As `PassModel.logits`.

        A part of a model takes the activations `entering` [tokens, hidden] where it has no first layer, and gives
        those that leave it, of all positions, where it has no last; `store` is the part of the pool that the slots
        count in.
        """
        with self._passing():
            if self._tiles is not None:
                return self._deterministic_logits(feeds, wanted, self._tiles)
            plan = PassPlan(
                feeds,
                store=self.store if store is None else store,
                device=self.device,
                pads_rows=self._pads_rows,
                is_abandoned=self._abandoned.is_set,
            )

            def uncaptured() -> Tensor:
                # The output projection is a large share of a small model: it is computed where it is wanted only.
                logits = self._decode(plan, wanted if len(wanted) < len(plan.tokens) else None, entering)
                self._features.keep(plan.slots)
                return logits

            return (
                uncaptured() if self._graphs is None else self._graphs.logits(plan, wanted, uncaptured=uncaptured)
            )

    def _deterministic_logits(self, feeds: Feeds, wanted: list[int], tiles: RowTileSet) -> Tensor:
        stale = stale_slots(feeds)
        if len(stale):
            self.store.clear(stale)
        logits = []
        for start, piece in _pieces(feeds, tiles.products.cut(sum(len(row.tokens) for _, row in feeds))):
            plan = PathPlan(
                piece, store=self.store, device=self.device, tiles=tiles, is_abandoned=self._abandoned.is_set
            )
            asked = [number - start for number in wanted if start <= number < start + len(plan.slots)]
            # The output projection is a product like the others; its padding repeats the last row.
            padding = tiles.products.padded(len(asked)) - len(asked)
            logits.append(self._decode(plan, asked + asked[-1:] * padding)[: len(asked)])
            self._features.keep(plan.slots)
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    def _decode(self, plan: DecoderPlan, wanted: list[int] | None, entering: Tensor | None = None) -> Tensor:
        """Logits [wanted, vocab] of a pass at some of its positions, or at all."""
        keep = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=self.device)
        if self.flat is not None:
            return self.flat(plan, keep, entering, self._features.seen)
        extra = {"logits_to_keep": keep} if keep is not None and self._keeps_logits else {}
        if entering is not None:
            extra["entering"] = entering
        output: Tensor = self.model(
            input_ids=plan.input_ids, position_ids=plan.position_ids, use_cache=False, plan=plan, **extra
        ).logits[0]
        return output if keep is None or self._keeps_logits else output[keep]


def _pieces(feeds: Feeds, sizes: Sequence[int]) -> Iterator[tuple[int, Feeds]]:
    """A pass in pieces of so many tokens, each with the number of its first token in the pass."""
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
