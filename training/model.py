"""The network of the family: a Llama decoder with tied embeddings."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.vocabulary import CONTEXT_TOKENS, END_ID

HEAD_WIDTH = 64
"""The least that most attention kernels take."""
_INITIAL_DEVIATION = 0.02
"""Llama's own standard deviation of initial weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model; heads and feed-forward width follow from the width."""

    layers: int
    width: int
    vocabulary_size: int = 4096

    @property
    def heads(self) -> int:
        """Attention heads of 64 channels each, at least one."""
        return max(1, self.width // HEAD_WIDTH)

    @property
    def feed_forward_width(self) -> int:
        """Eight thirds of the width, in whole multiples of 32."""
        return max(32, round(self.width * 8 / 3 / 32) * 32)


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """An untrained model in float32."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary_size,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=CONTEXT_TOKENS,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=END_ID,
            eos_token_id=END_ID,
            pad_token_id=END_ID,
        )
    )
    _shrink_residual_outputs(model, shape.layers)
    return model


def load_model(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A saved model, ready for inference."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def default_device() -> str:
    """The accelerator where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _shrink_residual_outputs(model: torch.nn.Module, layers: int) -> None:
    # Every layer adds two branches to the residual stream: smaller outputs keep its variance level.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(parameter, 0.0, _INITIAL_DEVIATION / math.sqrt(2 * layers))
