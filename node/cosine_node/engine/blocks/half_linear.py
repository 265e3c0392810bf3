"""Linear layers that hold their weights in float16 and compute in float32, on CPUs.

A pass over a few tokens takes as long as reading the weights. In float32 a CPU reads twice the bytes, and for more
than one token its libraries reorder them each time. FBGEMM, which PyTorch has for x86, reads packed float16 and
sums in float32: each product of a row has the same bits whatever the number of rows. What that gains is in decision
67.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from cosine_protocol.errors import UsageError

HALF: Final = "float16"
"""What `--quantize` and numerics call it."""


class HalfLinear(nn.Module):
    """Stands for a linear layer of float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Not packed: there are layers that set it aside for a while.
        self.bias = linear.bias
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach(), None)

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs] in float32, unpacked for whoever reads it: some layers multiply by it themselves."""
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = torch.ops.quantized.linear_dynamic_fp16(vectors, self._packed)
        return found if self.bias is None else found.add_(self.bias)


def has_half_products() -> bool:
    """True if PyTorch has such products for this machine."""
    try:
        torch.ops.quantized.linear_prepack_fp16(torch.zeros(1, 1), None)
    except (RuntimeError, AttributeError):
        return False
    return True


def hold_in_half(model: nn.Module) -> int:
    """Let the linear layers of a model of float32 hold their weights so; how many there are.

    Raises `UsageError` for a weight that float16 has not.
    """
    held = 0
    for name, module in list(model.named_modules()):
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or type(weight) is not nn.Parameter:
            continue
        if not weight.detach().abs().max() <= torch.finfo(torch.float16).max:
            raise UsageError(f"The weights of {name} are too large for float16; drop --quantize.")
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, HalfLinear(module))
        held += 1
    return held
