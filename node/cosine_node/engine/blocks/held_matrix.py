"""Matrices whose products are a library's, with weights converted for it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]


class HeldMatrix(ABC):
    """A matrix [outputs, inputs] for products with rows in float32 on a CPU."""

    inputs: int
    nbytes: int

    @classmethod
    @abstractmethod
    def joined(cls, matrices: Sequence[Any]) -> Self:
        """Return one matrix with the outputs of several, which may not be used afterwards."""

    @property
    @abstractmethod
    def kind(self) -> tuple[object, ...]:
        """Equal for matrices whose products are the same code, except for their sizes."""

    @abstractmethod
    def times(self, rows: Floats) -> Floats:
        """Map rows [rows, inputs] to new ones [rows, outputs]."""

    def numbers(self) -> Tensor:
        """Return the weights [outputs, inputs] in float32."""
        return torch.from_numpy(self.times(np.eye(self.inputs, dtype=np.float32)).T.copy())


class HalfMatrix(HeldMatrix):
    """Weights in float16 and sums in float32 (FBGEMM, in PyTorch for x86).

    With AVX-512, a row's result has the same bits for any number of rows; with AVX2, one or two rows are summed in
    another order than more. docs/decisions/0067-weights-in-float16.md has the measurements.
    """

    def __init__(self, weight: Tensor) -> None:
        """Pack `weight`, which is in float32."""
        self.inputs, self.nbytes = weight.shape[1], 2 * weight.numel()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)

    @classmethod
    def joined(cls, matrices: "Sequence[HalfMatrix]") -> "HalfMatrix":
        return cls(torch.cat([matrix.numbers() for matrix in matrices]))

    @property
    def kind(self) -> tuple[object, ...]:
        return (HalfMatrix,)

    def numbers(self) -> Tensor:
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def times(self, rows: Floats) -> Floats:
        found: Floats = torch.ops.quantized.linear_dynamic_fp16(torch.from_numpy(rows), self._packed).numpy()
        return found
