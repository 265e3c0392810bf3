"""The engine of a draft head: it drafts in its target's tokens, from the activations of the target's layers."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cosine_engine.base import PREFIX, Row, RowResult
from cosine_engine.blocks.held_linear import HeldLinear
from cosine_engine.compiled.layers import CompiledLayers, LayerModules, PassTokens, Paths
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.eagle.draft_head import EagleHead
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.pass_features import KeptFeatures
from cosine_engine.forward.pass_plan import DecoderPlan, PassPlan
from cosine_engine.kernels.elements import SILU
from cosine_engine.kernels.passes import DecoderShape, run_head
from cosine_engine.kv_pool import PagePool
from cosine_engine.logits_engine import LogitsEngine
from cosine_engine.torch import sampling
from cosine_engine.tree import Feeds, SequenceTree
from cosine_engine.vocabulary import DraftVocabulary, KnownTokens


class CompiledHead:
    """Runs the passes of a draft head on a CPU, all of whose linear layers are converted."""

    def __init__(self, head: EagleHead) -> None:
        shape, layer = head.shape, head.midlayer
        attention, output = layer.self_attn, head.lm_head
        assert isinstance(output, HeldLinear), "all linear layers are converted"
        self._head: EagleHead = head
        sizes = DecoderShape(
            hidden=shape.width,
            entering=2 * shape.width,
            wide=shape.feed_forward_width,
            query_heads=shape.heads,
            key_heads=shape.key_heads,
            width=shape.head_width,
            scale=np.float32(shape.head_width**-0.5),
            eps=np.float32(shape.norm_eps),
            steepness=SILU,
        )
        norms = layer.hidden_norm, layer.post_attention_layernorm
        modules = LayerModules.of(attention, layer.mlp, norms=norms)
        last_norms = head.norm, layer.input_layernorm
        self._layers: CompiledLayers = CompiledLayers(sizes, [modules], last_norms=last_norms, output=output)

    @staticmethod
    def of(head: object) -> "CompiledHead | None":
        """Return the compiled form of a head that has one."""
        if not isinstance(head, EagleHead) or head.dtype is not torch.float32:
            return None
        linears = [module for module in head.modules() if hasattr(module, "in_features")]
        return CompiledHead(head) if all(isinstance(each, HeldLinear) for each in linears) else None

    def __call__(
        self, feeds: Feeds, store: KvStore, embedded: Tensor, feature: Tensor, wanted: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the features [tokens, width] of a pass, and the logits [wanted, draft tokens]."""
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        slots = np.array([node.slot for node in nodes], np.int64)
        tokens = PassTokens(slots, Paths.of(feeds), store, np.zeros(2, np.int64))
        angles = self._head.angles(torch.tensor([node.index for node in nodes]), torch.float32)
        given = self._layers.prepare(tokens, feature, lambda _: angles, wanted)
        place = self._layers.run(run_head, given, embedded.numpy())
        return self._head.fed_back(torch.from_numpy(given.x[place])), torch.from_numpy(given.logits)


class DraftHead(Protocol):
    """A layer that reads each token with the feature [width] of the token before it."""

    @property
    def width(self) -> int: ...

    @property
    def vocabulary(self) -> DraftVocabulary | None:
        """The target's tokens that it may draft; None for all."""

    def fuse(self, activations: Tensor) -> Tensor:
        """Return the features [tokens, width] of the target's activations of tokens."""

    def read(self, plan: DecoderPlan, embedded: Tensor, feature: Tensor) -> Tensor:
        """Return the output of a pass, [tokens, width]: the feature of each token as a guess."""

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits [tokens, draft tokens] after the tokens with this output."""


class HeadEngine(LogitsEngine):
    """Implements `cosine_engine.base.Engine` around a draft head; not thread-safe.

    A token is read with the feature of its parent. Rows give the activations before their first tokens
    (`Row.activations`); the feature of other tokens is the output of an earlier pass of the head for the parent, or
    zeros without one, so that a text may begin anywhere. `embedding` [target's rows, width] is the target's; its
    tokens below `known_tokens` are drafted.
    """

    # A head has no likelihoods of unknown tokens.
    tells_likelihoods = False

    def __init__(
        self,
        head: DraftHead,
        embedding: Tensor,
        *,
        pool_tokens: int,
        known_tokens: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.head = head
        self._compiled = CompiledHead.of(head)
        if head.vocabulary is not None and known_tokens is not None:
            known_tokens = bisect_left(head.vocabulary.target_ids, known_tokens)
        self._embedding = embedding
        pool = PagePool(tokens=pool_tokens)
        self._store = KvStore(slots=pool.capacity_tokens)
        # The head's output for the token in each slot.
        self._outputs = embedding.new_zeros(pool.capacity_tokens, head.width)
        # The tokens of the present pass in the target's ids, which the head reads.
        self._tokens: list[int] = []
        super().__init__(
            pool,
            sampling,
            vocab_tokens=len(embedding),
            context_tokens=pool.capacity_tokens,
            numerics=str(embedding.dtype).removeprefix("torch."),
            known=KnownTokens(count=known_tokens, vocabulary=head.vocabulary, target_tokens=len(embedding)),
            grammars=grammars,
        )

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self._tokens = [token for row in rows for token in row.tokens]
        with torch.inference_mode():
            return super().forward(rows)

    def pass_logits(self, feeds: Feeds, wanted: list[int]) -> Tensor:
        embedded = F.embedding(torch.tensor(self._tokens, device=self._embedding.device), self._embedding)
        features = torch.cat([self._features(tree, row) for tree, row in feeds])
        if self._compiled is not None:
            outputs, logits = self._compiled(feeds, self._store, embedded, features, wanted)
        else:
            plan = PassPlan(feeds, store=self._store, device=self._embedding.device)
            outputs = self.head.read(plan, embedded, features)
            logits = self.head.logits(outputs if len(wanted) == len(outputs) else outputs[wanted])
        self._outputs[[tree.nodes[name].slot for tree, row in feeds for name in row.nodes]] = outputs
        # The reserved id of a vocabulary is never chosen.
        return logits if self.head.vocabulary is None else F.pad(logits, (0, 1), value=-math.inf)

    def _features(self, tree: SequenceTree, row: Row) -> Tensor:
        """Return the features for the tokens of a row in its tree, [tokens, width]."""
        found, known = [], 0
        if row.activations is not None:
            assert isinstance(row.activations, KeptFeatures), "they are a target's on PyTorch"
            found.append(self.head.fuse(row.activations.read()))
            known = len(row.activations)
        own, slots = set(row.nodes), []
        for parent in row.parents[known:]:
            if parent == PREFIX:
                slots.append(tree.slots[-1] if tree.slots else -1)
            else:
                slots.append(-1 if parent in own else tree.nodes[parent].slot)
        if slots:
            features = self._outputs[slots]
            unknown = [place for place, slot in enumerate(slots) if slot < 0]
            if unknown:
                features[unknown] = 0.0
            found.append(features)
        return found[0] if len(found) == 1 else torch.cat(found)
