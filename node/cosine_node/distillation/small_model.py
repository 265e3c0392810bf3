"""An untrained small model: a Llama decoder with tied embeddings."""

import math
from dataclasses import dataclass
from typing import Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HEAD_WIDTH: Final = 64
"""The least that most attention kernels take."""
INITIAL_DEVIATION: Final = 0.02
"""Llama's own standard deviation of initial weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model; heads and feed-forward width follow from the width."""

    layers: int
    width: int
    vocabulary_size: int
    context_tokens: int

    @property
    def heads(self) -> int:
        """Attention heads of 64 channels each, at least one."""
        return max(1, self.width // HEAD_WIDTH)

    @property
    def feed_forward_width(self) -> int:
        """Eight thirds of the width, in whole multiples of 32."""
        return max(32, round(self.width * 8 / 3 / 32) * 32)


def new_model(shape: Shape, seed: int, *, end_id: int | None = None) -> LlamaForCausalLM:
    """An untrained model in float32; `end_id` begins, ends and pads its texts."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary_size,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.context_tokens,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=end_id,
            eos_token_id=end_id,
            pad_token_id=end_id,
        )
    )
    # Every layer adds two branches to the residual stream: smaller outputs keep its variance level.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(parameter, 0.0, INITIAL_DEVIATION / math.sqrt(2 * shape.layers))
    return model
