"""Linear layers on a CPU with converted weights, which libraries multiply faster than PyTorch does its own.

A pass over a few tokens takes as long as reading the weights. In float32, a CPU reads twice the bytes of 16 bits,
and libraries reorder them in each product with more than one token; without 16-bit instructions, bfloat16 and
float16 are emulated.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from cosine_engine.blocks.groups import Groups
from cosine_engine.blocks.held_matrix import FULL_FORMAT, HALF_FORMAT, HeldMatrix
from cosine_engine.blocks.matrix import BlockLinear, BlockMatrix
from cosine_engine.kernels.products import GROUP
from cosine_engine.processor import has_fast_bfloat16, has_fast_float16, reads_float16

HALF: Final = "float16"
"""The name of weights in float16 in `--quantize` and in numerics."""
FULL: Final = "float32"
"""That of weights in float32, which is no quantisation."""
FORMS: Final = {HALF: HALF_FORMAT, FULL: FULL_FORMAT}
"""The formats of these."""
BITS: Final = {"int4": 4, "int8": 8}
"""The names of weights in groups, in the same places, with their bits."""
HELD: Final = (HALF, *BITS)
READ_APART: Final = ("kv_b_proj", "mixer.out_proj", "mixer.dt_proj")
"""The names of linear layers whose weights other code multiplies by: latent attention and Mamba."""


class HeldLinear(nn.Module):
    """Replaces a linear layer. Inputs and outputs have the dtype of the layer."""

    def __init__(self, linear: nn.Linear | BlockLinear, matrix: HeldMatrix) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Not packed: some layers temporarily remove it.
        self.bias = linear.bias
        self.nbytes = matrix.nbytes
        self._dtype = linear.weight.dtype
        self.matrix = matrix

    @property
    def weight(self) -> Tensor:
        """The weight [outputs, inputs] in the layer's dtype, unpacked for code that multiplies by it."""
        return self.matrix.numbers().to(self._dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        rows = vectors.detach().float().reshape(-1, self.in_features)
        found = torch.from_numpy(self.matrix.times(rows.contiguous().numpy()))
        found = found.reshape(*vectors.shape[:-1], self.out_features)
        return (found if self.bias is None else found + self.bias).to(vectors.dtype)


def has_layers_to_hold(model: Any) -> bool:
    """True if a causal LM has linear layers besides its output layer."""
    output = model.get_output_embeddings()
    return any(_is_linear(module) for module in model.modules() if module is not output)


def hold(model: nn.Module, kind: str) -> int:
    """Convert the weights of a model's linear layers on a CPU; return the number of converted layers.

    `kind` is `HALF`, `FULL` or one of `BITS`. Layers of `READ_APART`, and those that do not allow it, stay.
    """
    held = 0
    for name, module in list(model.named_modules()):
        if not _is_linear(module) or name.endswith(READ_APART):
            continue
        matrix = _converted(module, kind)
        if matrix is not None:
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, HeldLinear(module, matrix))
            held += 1
    if held:
        # A mapped file of weights stays in memory as long as one of its tensors exists.
        for left in model.parameters():
            if not left.untyped_storage().resizable():
                left.data = left.data.clone()
    return held


def _converted(linear: nn.Linear | BlockLinear, kind: str) -> HeldMatrix | None:
    if linear.weight.device.type != "cpu":
        return None
    if kind in BITS and isinstance(linear, BlockLinear):
        groups = Groups.of_blocks(linear.blocks)
        if groups is not None:
            return HeldMatrix.of_groups(groups)
    weight = linear.numbers() if isinstance(linear, BlockLinear) else linear.weight.detach().float()
    if kind not in BITS:
        return HeldMatrix.of_weights(weight, FORMS[kind])
    return None if linear.in_features % GROUP else HeldMatrix.of_groups(Groups.of_weights(weight, BITS[kind]))


def avoid_emulation(model: Any) -> None:
    """Let a 16-bit model multiply in float32 on a CPU that would emulate its dtype.

    Results are rounded to the model's dtype, so its numerics keep their name. float16 represents bfloat16 weights
    exactly, except numbers below 6e-5, with an error of at most 3e-8.
    """
    has_fast = {torch.bfloat16: has_fast_bfloat16(), torch.float16: has_fast_float16()}
    if not has_fast.get(model.dtype, True) and reads_float16():
        hold(model, HALF)


def hold_like(target: nn.Module, head: nn.Module) -> None:
    """Convert a draft head's weights as those of its target, but to eight bits if those are in groups."""
    matrices = [module.matrix for module in target.modules() if isinstance(module, HeldLinear)]
    if matrices:
        hold(head, next((kind for kind, form in FORMS.items() if form == matrices[0].form), "int8"))


def held_bytes(module: nn.Module, dtype: torch.dtype, kind: str) -> int:
    """Return the size of a module of this dtype after `hold`; it may be on the meta device."""
    held = {each for name, each in module.named_modules() if _is_linear(each) and not name.endswith(READ_APART)}
    replaced = {matrix for each in held for matrix in each.children()}
    others = {each for each in module.modules() if each not in held | replaced}
    weights = {weight for each in others for weight in each.parameters(recurse=False)}
    biases = {each.bias for each in held if each.bias is not None}
    # A scale and a smallest weight for 32 weights, or a scale for 16, take a bit a weight.
    weight_bytes = 2 if kind == HALF else (BITS[kind] + 1) / 8
    linear_bytes = sum(int(weight_bytes * each.in_features * each.out_features) for each in held)
    blocks_bytes = sum(each.planes.nbytes for each in others if isinstance(each, BlockMatrix))
    return linear_bytes + blocks_bytes + dtype.itemsize * sum(weight.numel() for weight in weights | biases)


def _is_linear(module: nn.Module) -> bool:
    is_plain = isinstance(module, nn.Linear) and type(module.weight) is nn.Parameter
    return is_plain or isinstance(module, BlockLinear)
