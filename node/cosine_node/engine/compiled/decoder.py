"""The decoder of models of the Llama and Gemma kinds with converted weights, as one kernel for a pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.blocks.held_linear import FULL, HeldLinear, avoid_emulation, hold
from cosine_node.engine.compiled.layers import CompiledLayers, LayerModules, PassTokens
from cosine_node.engine.forward.flat_decoder import is_known, layers_of, projections, window_of
from cosine_node.engine.forward.partial_model import AbsentOutput
from cosine_node.engine.kernels.elements import GELU, SILU
from cosine_node.engine.kernels.passes import Shape, run_layers


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """The inputs of a pass: token ids and positions [1, tokens], and the tokens' places."""

    input_ids: Tensor
    position_ids: Tensor
    tokens: PassTokens
    check: Callable[[], None]
    """Raises `PassAbandoned` if the pass was stopped."""


class CompiledDecoder:
    """Maps tokens to logits; for a part of a model, from or to activations between layers.

    A token's result depends bit for bit only on its own path.
    """

    def __init__(self, model: Any) -> None:
        """Wrap a model that `is_compilable`."""
        body, layers = model.model, layers_of(model)
        attention = layers[0].self_attn
        width: int = attention.head_dim
        shape = Shape(
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
        last_norm = None if output is None else body.norm
        self._embed, self._rotary = body.embed_tokens, body.rotary_emb
        self._has_kinds = hasattr(self._rotary, "layer_types")
        self._layers = CompiledLayers(shape, modules, last_norms=(last_norm, None), output=output)

    def __call__(
        self,
        given: CompiledPass,
        wanted: Sequence[int],
        entering: Tensor | None = None,
        seen: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return logits [wanted, vocab] at some positions of a pass.

        Activations `entering` [tokens, hidden] replace the embedding. Without an output layer, the output of the
        last layer is returned instead of logits. The keys of `seen` are layer numbers: the input of each layer
        [tokens, hidden] is stored there; the number after the last layer means its output.
        """
        embedded = self._embed(given.input_ids)[0] if entering is None else entering

        def angles_of(window: int | None) -> Sequence[Tensor]:
            kind = "full_attention" if window is None else "sliding_attention"
            found: Sequence[Tensor] = self._rotary(embedded, given.position_ids, *([kind] * self._has_kinds))
            return found

        seen = {} if seen is None else seen
        arrays = self._layers.prepare(given.tokens, embedded, angles_of, wanted, tuple(seen))
        place = self._layers.run(run_layers, arrays)
        if place < 0:
            given.check()
        seen.update(zip(seen, map(torch.from_numpy, arrays.features), strict=True))
        return torch.from_numpy(arrays.logits if self._layers.vocab_tokens else arrays.x[place][wanted])


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


GATES: Final = {"SiLU": SILU, "SiLUActivation": SILU, "GELUTanh": GELU, "PytorchGELUTanh": GELU}
"""The activations of feed-forwards, as PyTorch and transformers name them."""


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
