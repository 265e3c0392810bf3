"""A transformers model that runs compiled passes: models of the Llama and Gemma kinds with converted weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cosine_engine.blocks.held_linear import FULL, HeldLinear, avoid_emulation, hold
from cosine_engine.compiled.layers import CompiledLayers, LayerModules, PassTokens, Paths
from cosine_engine.forward.flat_decoder import is_known, layers_of, projections, window_of
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.partial_model import AbsentOutput
from cosine_engine.forward.pass_features import PassFeatures
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.kernels.elements import GELU, SILU
from cosine_engine.kernels.passes import DecoderShape, run_layers
from cosine_engine.kv_pool import WindowPages
from cosine_engine.tree import Feeds

GATES: Final = {"SiLU": SILU, "SiLUActivation": SILU, "GELUTanh": GELU, "PytorchGELUTanh": GELU}
"""The activations of feed-forwards, as PyTorch and transformers name them."""


class CompiledModel(PassModel):
    """Wraps a causal LM that `is_compilable` for passes over a pool of `slots` token slots, each one kernel.

    A token's logits depend bit for bit only on its own path. Layers with a sliding window use the pages of
    `windows`, if given.
    """

    attention_name = "eager"

    def __init__(
        self, model: Any, *, slots: int, windows: WindowPages | None = None, feature_layers: Sequence[int] = ()
    ) -> None:
        self._layers = _compiled(model)
        self._embed, self._rotary = model.model.embed_tokens, model.model.rotary_emb
        self._has_kinds = hasattr(self._rotary, "layer_types")
        features = PassFeatures(model, feature_layers, slots=slots, is_flat=True)
        super().__init__(model, KvStore(slots=slots, windows=windows), features)
        self.vocab_tokens = self._run_first_token()

    def logits(
        self, feeds: Feeds, *, wanted: list[int], entering: Tensor | None = None, store: KvStore | None = None
    ) -> Tensor:
        """Run a pass as `PackedModel.logits` does."""
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        slots = np.array([node.slot for node in nodes], dtype=np.int64)
        tokens = PassTokens(slots, Paths.of(feeds), self.store if store is None else store, self._stop)
        positions = torch.tensor([[node.index for node in nodes]], dtype=torch.int64)
        seen = self.features.seen or {}
        with self._passing():
            embedded = entering
            if embedded is None:
                ids = torch.tensor([token for _, row in feeds for token in row.tokens], dtype=torch.int64)
                embedded = self._embed(ids[None])[0]

            rotated: Callable[..., Sequence[Tensor]] = partial(self._rotary, embedded, positions)
            usual = None if self._has_kinds else rotated()

            def angles_of(window: int | None) -> Sequence[Tensor]:
                return usual or rotated("full_attention" if window is None else "sliding_attention")

            arrays = self._layers.prepare(tokens, embedded, angles_of, wanted, tuple(seen))
            place = self._layers.run(run_layers, arrays)
            if place < 0:
                self._check()
            seen.update(zip(seen, map(torch.from_numpy, arrays.features), strict=True))
            self.features.keep(slots)
            return torch.from_numpy(arrays.logits if self._layers.vocab_tokens else arrays.x[place][wanted])


def _compiled(model: Any) -> CompiledLayers:
    """Return the layers of a model that `is_compilable`, as the tables of kernels."""
    layers = layers_of(model)
    attention = layers[0].self_attn
    width: int = attention.head_dim
    shape = DecoderShape(
        hidden=model.config.hidden_size,
        entering=model.config.hidden_size,
        wide=layers[0].mlp.gate_proj.out_features,
        query_heads=attention.q_proj.out_features // width,
        key_heads=attention.k_proj.out_features // width,
        width=width,
        scale=np.float32(attention.scaling),
        eps=np.float32(_eps_of(layers[0].input_layernorm)),
        steepness=GATES[type(layers[0].mlp.act_fn).__name__],
    )
    output = None if isinstance(model.lm_head, AbsentOutput) else model.lm_head
    modules = [
        LayerModules.of(
            layer.self_attn,
            layer.mlp,
            index=layer.self_attn.layer_idx,
            window=window_of(layer.self_attn),
            **_norms_of(layer),
        )
        for layer in layers
    ]
    last_norm = None if output is None else model.model.norm
    return CompiledLayers(shape, modules, last_norms=(last_norm, None), output=output)


def hold_as_stored(model: Any) -> None:
    """Hold weights that are not to be converted as a CPU multiplies them, if the passes can be compiled then.

    So float32 has the same bits in every pass as well. Other models multiply as `avoid_emulation` lets them.
    """
    layers = layers_of(model)
    is_full = model.device.type == "cpu" and model.dtype is torch.float32
    if is_full and layers and all(map(is_known_kind, layers)):
        hold(model, FULL)
    else:
        avoid_emulation(model)


def is_known_kind(layer: Any) -> bool:
    """True if a layer computes what the kernels do."""
    is_gemma = type(layer).__name__ == "Gemma3DecoderLayer" and type(layer.mlp.act_fn).__name__ in GATES
    return is_known(layer) or is_gemma


def _norms_of(layer: Any) -> dict[str, Sequence[Any]]:
    if hasattr(layer, "pre_feedforward_layernorm"):
        return {
            "norms": (layer.input_layernorm, layer.pre_feedforward_layernorm),
            "of_outputs": (layer.post_attention_layernorm, layer.post_feedforward_layernorm),
        }
    return {"norms": (layer.input_layernorm, layer.post_attention_layernorm)}


def _eps_of(norm: Any) -> float:
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)


def is_compilable(model: Any) -> bool:
    """True if a causal LM is in float32 on a CPU, of known layers, and all its products have converted weights."""
    layers = layers_of(model)
    if model.device.type != "cpu" or model.dtype is not torch.float32 or not layers:
        return False
    head = model.lm_head
    has_output = isinstance(head, AbsentOutput) or (isinstance(head, HeldLinear) and head.bias is None)
    return has_output and all(
        is_known_kind(layer) and all(isinstance(each, HeldLinear) for each in projections(layer))
        for layer in layers
    )
