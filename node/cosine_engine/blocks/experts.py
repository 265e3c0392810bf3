"""Mixtures of experts with weights in blocks, as an experts implementation of transformers."""

from typing import Any

from torch import Tensor, nn

from cosine_engine.blocks.matrix import BlockMatrix


def is_mixture(module: nn.Module) -> bool:
    """True for a module that holds all experts of a layer."""
    return hasattr(module, "is_transposed")


def are_computed_here(module: nn.Module) -> bool:
    """True for experts that `experts_in_blocks` can compute."""
    return is_mixture(module) and bool(module.has_gate) and not module.has_post_expert_norm


def experts_in_blocks(
    experts: Any, hidden: Tensor, expert_of: Tensor, weight_of: Tensor, *_: object, **__: object
) -> Tensor:
    """Compute experts, some with weights in blocks, from [tokens, hidden] to the same.

    The experts of each token and their weights are [tokens, experts].
    """
    chosen = expert_of.shape[1]
    # The expert of each pair of a token and an expert.
    asked = expert_of.flatten()
    found = hidden.new_empty(len(asked), hidden.shape[1])
    for expert in sorted(set(asked.tolist())):
        pairs = (asked == expert).nonzero()[:, 0]
        opened = experts._apply_gate(_project(experts, "gate_up_proj", expert, hidden[pairs // chosen]))
        found[pairs] = _project(experts, "down_proj", expert, opened)
    weighted: Tensor = (found.view(*expert_of.shape, -1) * weight_of[..., None]).sum(1)
    return weighted.to(hidden.dtype)


def _project(experts: Any, name: str, expert: int, vectors: Tensor) -> Tensor:
    """Return the product [..., rows] of vectors [..., columns] with an expert's weights of this name."""
    weights = getattr(experts, name)
    if isinstance(weights, BlockMatrix):
        # Its rows are the outputs, even if the layer's own weights would be transposed.
        found = weights.times(vectors, expert=expert)
    else:
        found = vectors @ (weights[expert] if experts.is_transposed else weights[expert].T)
    return found + getattr(experts, f"{name}_bias")[expert] if experts.has_bias else found
