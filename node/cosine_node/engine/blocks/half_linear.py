"""Linear layers that hold their weights in float16 and multiply in float32, on CPUs.

A pass over a few tokens takes as long as reading the weights. In float32 a CPU reads twice the bytes, and for more
than one token its libraries reorder them each time; 16 bits they emulate where the processor has no instructions
for them. FBGEMM, which PyTorch has for x86, reads packed float16 and sums in float32: each product of a row has the
same bits whatever the number of rows. What that gains is in decision 67.
"""

from collections.abc import Collection
from typing import Any, Final

import torch
from torch import Tensor, nn

from cosine_node.engine.processor import has_fast_bfloat16, has_fast_float16, reads_float16

HALF: Final = "float16"
"""What `--quantize` and numerics call it."""
MOST_THREADS: Final = 2
"""These products run in one thread. With so many the others still take longer, with more perhaps not."""


class HalfLinear(nn.Module):
    """Stands for a linear layer. What comes in and goes out has the layer's dtype."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Not packed: there are layers that set it aside for a while.
        self.bias = linear.bias
        self._dtype = linear.weight.dtype
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), None)

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs] in the layer's dtype, unpacked for whoever reads it: some layers multiply by it."""
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked.to(self._dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = torch.ops.quantized.linear_dynamic_fp16(vectors.float(), self._packed)
        return (found if self.bias is None else found.add_(self.bias)).to(vectors.dtype)


def has_half_products() -> bool:
    """True if PyTorch has such products for this machine."""
    try:
        torch.ops.quantized.linear_prepack_fp16(torch.zeros(1, 1), None)
    except (RuntimeError, AttributeError):
        return False
    return True


def hold_in_half(model: nn.Module, dtypes: Collection[torch.dtype] = (torch.float32,)) -> int:
    """Let the linear layers of a model that lie on a CPU in one of these dtypes hold their weights so; how many do.

    Those with a weight that float16 has not stay as they are.
    """
    held = 0
    for name, module in list(model.named_modules()):
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or type(weight) is not nn.Parameter:
            continue
        if weight.device.type != "cpu" or weight.dtype not in dtypes:
            continue
        if weight.detach().abs().max() <= torch.finfo(torch.float16).max:
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, HalfLinear(module))
            held += 1
    if held:
        # A file that weights were read from stays in memory as long as one of them lies in it.
        for left in model.parameters():
            if not left.untyped_storage().resizable():
                left.data = left.data.clone()
    return held


def avoid_emulation(model: nn.Module) -> None:
    """Let a model of 16 bits multiply in float32 where it lies on a CPU that would emulate its dtype.

    That rounds as its own products do. Of bfloat16 float16 has all digits, but of numbers below 6e-5: those are off
    by 3e-8 at most.
    """
    if torch.get_num_threads() > MOST_THREADS or not reads_float16() or not has_half_products():
        return
    has_fast = {torch.bfloat16: has_fast_bfloat16(), torch.float16: has_fast_float16()}
    hold_in_half(model, [dtype for dtype, is_fast in has_fast.items() if not is_fast])


def hold_like(quantize: str | None, head: nn.Module) -> None:
    """Let a draft head hold its weights in float16 where its target does, loaded with this option."""
    if quantize == HALF:
        hold_in_half(head)
    else:
        avoid_emulation(head)
