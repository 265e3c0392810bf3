"""Linear layers that hold their weights in float16 and multiply in float32, on CPUs.

A pass over a few tokens takes as long as reading the weights. In float32, a CPU reads twice the bytes, and
libraries reorder them in each product with more than one token; without 16-bit instructions, bfloat16 and float16
are emulated. FBGEMM, in PyTorch for x86, reads packed float16 weights and sums in float32. With AVX-512, a row's
result has the same bits for any number of rows; with AVX2, one or two rows are summed in another order than more,
which changes the last bits in float32. docs/decisions/0067-weights-in-float16.md has the measurements.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from cosine_node.engine.blocks.matrix import BlockLinear, BlockMatrix
from cosine_node.engine.processor import has_fast_bfloat16, has_fast_float16, reads_float16

HALF: Final = "float16"
"""The name of these weights in `--quantize` and in numerics."""
READ_APART: Final = ("kv_b_proj", "mixer.out_proj", "mixer.dt_proj")
"""The names of linear layers whose weights other code multiplies by: latent attention and Mamba."""


class HalfMatrix:
    """A packed matrix [outputs, inputs] in float16."""

    def __init__(self, weight: Tensor) -> None:
        """Pack `weight`, which is in float32."""
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def numbers(self) -> Tensor:
        """Return the weights [outputs, inputs] in float32."""
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def times(self, vectors: Tensor) -> Tensor:
        """Map vectors [..., inputs] to [..., outputs], both in float32."""
        found: Tensor = torch.ops.quantized.linear_dynamic_fp16(vectors, self._packed)
        return found


class HalfLinear(nn.Module):
    """Replaces a linear layer. Inputs and outputs have the dtype of the layer."""

    def __init__(self, linear: nn.Linear | BlockLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Not packed: some layers temporarily remove it.
        self.bias = linear.bias
        self._dtype = linear.weight.dtype
        self._matrix = HalfMatrix(_numbers(linear))
        self._rows = slice(self.out_features)

    @property
    def nbytes(self) -> int:
        return 2 * self.in_features * self.out_features

    @property
    def weight(self) -> Tensor:
        """The weight [outputs, inputs] in the layer's dtype, unpacked for code that multiplies by it."""
        return self._matrix.numbers()[self._rows].to(self._dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        found = self._matrix.times(vectors.float())[..., self._rows]
        return (found if self.bias is None else found + self.bias).to(vectors.dtype)

    @staticmethod
    def join(layers: "Sequence[HalfLinear]") -> HalfMatrix:
        """Join the matrices of layers of one input, which share the result: one product is faster than several.

        A single layer keeps its own matrix.
        """
        first = layers[0]
        if any(layer._matrix is not first._matrix for layer in layers):
            joined = HalfMatrix(torch.cat([layer._matrix.numbers()[layer._rows] for layer in layers]))
            start = 0
            for layer in layers:
                layer._matrix, layer._rows = joined, slice(start, start + layer.out_features)
                start += layer.out_features
        return first._matrix


def has_half_products() -> bool:
    """True if PyTorch supports products with float16 weights on this processor."""
    return reads_float16() and "fbgemm" in torch.backends.quantized.supported_engines


def has_layers_to_hold(model: Any) -> bool:
    """True if a causal LM has linear layers besides its output layer."""
    output = model.get_output_embeddings()
    return any(_is_linear(module) for module in model.modules() if module is not output)


def hold_in_half(model: nn.Module) -> int:
    """Convert the weights of a model's linear layers on a CPU to float16; return the number of converted layers.

    Layers of `READ_APART` and layers with a weight beyond the range of float16 are not changed.
    """
    held = 0
    for name, module in list(model.named_modules()):
        if not _is_linear(module) or name.endswith(READ_APART):
            continue
        weight = _numbers(module)
        if weight.device.type == "cpu" and weight.abs().max() <= torch.finfo(torch.float16).max:
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, HalfLinear(module))
            held += 1
    if held:
        # A mapped file of weights stays in memory as long as one of its tensors exists.
        for left in model.parameters():
            if not left.untyped_storage().resizable():
                left.data = left.data.clone()
    return held


def avoid_emulation(model: Any) -> None:
    """Let a 16-bit model multiply in float32 on a CPU that would emulate its dtype.

    Results are rounded to the model's dtype, so its numerics keep their name. float16 represents bfloat16 weights
    exactly, except numbers below 6e-5, with an error of at most 3e-8.
    """
    has_fast = {torch.bfloat16: has_fast_bfloat16(), torch.float16: has_fast_float16()}
    if not has_fast.get(model.dtype, True) and has_half_products():
        hold_in_half(model)


def hold_like(target: nn.Module, head: nn.Module) -> None:
    """Convert a draft head's weights to float16 if its target has such weights."""
    if any(isinstance(module, HalfLinear) for module in target.modules()):
        hold_in_half(head)


def bytes_in_half(module: nn.Module, dtype: torch.dtype) -> int:
    """Return the size of a module of this dtype after `hold_in_half`; it may be on the meta device."""
    held = {each for name, each in module.named_modules() if _is_linear(each) and not name.endswith(READ_APART)}
    replaced = {matrix for each in held for matrix in each.children()}
    others = {each for each in module.modules() if each not in held | replaced}
    weights = {weight for each in others for weight in each.parameters(recurse=False)}
    biases = {each.bias for each in held if each.bias is not None}
    linear_bytes: int = sum(2 * each.in_features * each.out_features for each in held)
    blocks_bytes = sum(each.planes.nbytes for each in others if isinstance(each, BlockMatrix))
    return linear_bytes + blocks_bytes + dtype.itemsize * sum(weight.numel() for weight in weights | biases)


def _is_linear(module: nn.Module) -> bool:
    is_plain = isinstance(module, nn.Linear) and type(module.weight) is nn.Parameter
    return is_plain or isinstance(module, BlockLinear)


def _numbers(linear: nn.Linear | BlockLinear) -> Tensor:
    """Return the weights [outputs, inputs] of a layer in float32."""
    if isinstance(linear, BlockLinear):
        return linear.numbers()
    return linear.weight.detach().float()
