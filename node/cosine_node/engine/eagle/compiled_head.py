"""A draft head with converted weights, as one kernel for a pass."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.blocks.held_linear import HeldLinear
from cosine_node.engine.compiled.layers import CompiledLayers, LayerModules, PassTokens
from cosine_node.engine.compiled.paths import Paths
from cosine_node.engine.eagle.draft_head import EagleHead
from cosine_node.engine.forward.kv_store import KvStore
from cosine_node.engine.forward.pass_plan import Feeds
from cosine_node.engine.kernels.elements import SILU
from cosine_node.engine.kernels.passes import Shape, run_head


class CompiledHead:
    """Runs the passes of a draft head on a CPU, all of whose linear layers are converted."""

    def __init__(self, head: EagleHead) -> None:
        shape, layer = head.shape, head.midlayer
        attention, output = layer.self_attn, head.lm_head
        assert isinstance(output, HeldLinear), "all linear layers are converted"
        self._angles: Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor]] = head.angles
        sizes = Shape(
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
        """Return the outputs [tokens, width] of a pass, and the logits [wanted, draft tokens]."""
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        slots = np.array([node.slot for node in nodes], np.int64)
        tokens = PassTokens(slots, Paths.of(feeds), store, np.zeros(2, np.int64))
        angles = self._angles(torch.tensor([node.index for node in nodes]), torch.float32)
        given = self._layers.prepare(tokens, feature, lambda _: angles, wanted)
        place = self._layers.run(run_head, given, embedded.numpy())
        return torch.from_numpy(given.x[place]), torch.from_numpy(given.logits)
