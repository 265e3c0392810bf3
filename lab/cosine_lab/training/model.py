"""Models of the family on their way in and out of training."""

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from cosine_lab.training.vocabulary import END_ID
from cosine_node.engine.torch.support import cache_parameter


def load_model(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A saved model, ready for inference."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def default_device() -> str:
    """The accelerator where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


_CACHE: Final = cache_parameter(LlamaForCausalLM)


def pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """The next token of each row: the likeliest at temperature 0, a sample otherwise."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)


@torch.inference_mode()
def continue_rows(
    model: LlamaForCausalLM,
    prompts: Tensor,
    new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> Tensor:
    """Prompts of equal length with their continuations; decoding goes on past the end of a text.

    Equal lengths need no padding mask, which makes this many times faster than padded generation.
    """
    cache: dict[Any, DynamicCache] = {_CACHE: DynamicCache()}
    rows, fresh = [prompts], prompts
    for _ in range(new_tokens):
        output = model(input_ids=fresh, use_cache=True, logits_to_keep=1, **cache)
        fresh = pick(output.logits[:, -1], temperature, generator)
        rows.append(fresh)
    return torch.cat(rows, dim=1)


@torch.inference_mode()
def continue_one(
    model: LlamaForCausalLM,
    prompt: list[int],
    most_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[int]:
    """The continuation of one prompt, its end token included where it comes."""
    cache: dict[Any, DynamicCache] = {_CACHE: DynamicCache()}
    fresh = torch.tensor([prompt], device=model.device)
    written: list[int] = []
    while len(written) < most_new_tokens and END_ID not in written[-1:]:
        output = model(input_ids=fresh, use_cache=True, logits_to_keep=1, **cache)
        fresh = pick(output.logits[:, -1], temperature, generator)
        written.append(int(fresh))
    return written
