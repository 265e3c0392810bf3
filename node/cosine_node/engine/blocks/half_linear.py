"""Linear layers that hold their weights in float16 and multiply in float32, on CPUs.

A pass over a few tokens takes as long as reading the weights. In float32 a CPU reads twice the bytes, and for more
than one token its libraries reorder them each time; without instructions for 16 bits it emulates them. FBGEMM in
PyTorch for x86 reads packed float16 and sums in float32. With AVX-512 a row's product has the same bits among any
number of rows; with AVX2 one or two rows are summed in another order than more, which changes float32's last bits.
docs/decisions/0067-weights-in-float16.md has the measurements.
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
"""The names of linear layers whose weights others multiply by: attention that keeps latents, and Mamba."""


class HalfMatrix:
    """A packed matrix [outputs, inputs] in float16."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` is in float32."""
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def numbers(self) -> Tensor:
        """The weights [outputs, inputs] in float32."""
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def times(self, vectors: Tensor) -> Tensor:
        """Vectors [..., inputs] to [..., outputs], both in float32."""
        found: Tensor = torch.ops.quantized.linear_dynamic_fp16(vectors, self._packed)
        return found


class HalfLinear(nn.Module):
    """Replaces a linear layer. Its input and its output have the dtype of the layer."""

    def __init__(self, linear: nn.Linear | BlockLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Not packed: there are layers that set it aside for a while.
        self.bias = linear.bias
        self._dtype = linear.weight.dtype
        self._matrix = HalfMatrix(_numbers(linear))
        self._rows = slice(self.out_features)

    @property
    def nbytes(self) -> int:
        return 2 * self.in_features * self.out_features

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs] in the layer's dtype, unpacked for layers that multiply by it themselves."""
        return self._matrix.numbers()[self._rows].to(self._dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        found = self._matrix.times(vectors.float())[..., self._rows]
        return (found if self.bias is None else found + self.bias).to(vectors.dtype)

    @staticmethod
    def join(layers: "Sequence[HalfLinear]") -> HalfMatrix:
        """The matrix of layers of one input, which from now on share it: one product is faster than several.

        A single layer keeps its own.
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
    """True if this processor and its PyTorch have such products."""
    return reads_float16() and "fbgemm" in torch.backends.quantized.supported_engines


def has_layers_to_hold(model: Any) -> bool:
    """True if a causal LM has linear layers besides its output layer, which may be all that some models have."""
    output = model.get_output_embeddings()
    return any(_is_linear(module) for module in model.modules() if module is not output)


def hold_in_half(model: nn.Module) -> int:
    """Let the linear layers of a model on a CPU hold their weights in float16; the number of those that do.

    Layers of `READ_APART`, and those with a weight beyond the range of float16, stay as they are.
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
        # A file that weights were read from stays in memory as long as one of them lies in it.
        for left in model.parameters():
            if not left.untyped_storage().resizable():
                left.data = left.data.clone()
    return held


def avoid_emulation(model: Any) -> None:
    """Let a model of 16 bits multiply in float32 on a CPU that would emulate its dtype.

    Products are rounded as those of its dtype are, so that numerics keep their name. Of bfloat16 float16 has all
    digits except those of numbers below 6e-5, which are off by 3e-8 at most.
    """
    has_fast = {torch.bfloat16: has_fast_bfloat16(), torch.float16: has_fast_float16()}
    if not has_fast.get(model.dtype, True) and has_half_products():
        hold_in_half(model)


def hold_like(target: nn.Module, head: nn.Module) -> None:
    """Let a draft head hold its weights in float16 if its target does."""
    if any(isinstance(module, HalfLinear) for module in target.modules()):
        hold_in_half(head)


def bytes_in_half(module: nn.Module, dtype: torch.dtype) -> int:
    """The bytes of a module of this dtype once `hold_in_half` holds it; it may still be on the meta device."""
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
    """The weights [outputs, inputs] of a layer in float32."""
    if isinstance(linear, BlockLinear):
        return linear.numbers()
    return linear.weight.detach().float()
