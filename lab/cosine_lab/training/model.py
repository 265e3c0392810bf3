"""Models of the family on their way in and out of training."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM


def load_model(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A saved model, ready for inference."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def default_device() -> str:
    """The accelerator where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
