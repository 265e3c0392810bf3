"""Matrices in the order in which `tiles` reads them."""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_engine.blocks.groups import Groups
from cosine_engine.kernels.compilation import Floats, Integers
from cosine_engine.kernels.crew import run, threads_for
from cosine_engine.kernels.products import inputs_of, multiply
from cosine_engine.kernels.tiles import FORMATS, LANES, Format, tile

HALF_FORMAT, FULL_FORMAT = FORMATS[:2]
ALIGNMENT: Final = 64
"""Bytes of a cache line. A vector that lies in two takes longer to load."""


class HeldMatrix:
    """A matrix [outputs, inputs] for products with rows in float32 on a CPU.

    Products with groups round each group of a row's inputs to eight bits, as llama.cpp does. A row's result has the
    same bits whatever the other rows are.
    """

    def __init__(self, form: Format, shape: tuple[int, int], columns: npt.NDArray[Any], power: int = 0) -> None:
        """Copy `columns`, whose weights are divided by 2 to the power `power` in products."""
        self.form = form
        self.outputs, self.inputs = shape
        self._power = power
        self.nbytes = columns.nbytes
        memory = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        self._memory = memory[start : start + self.nbytes]
        self._memory[:] = columns.reshape(-1).view(np.uint8)

    @classmethod
    def of_weights(cls, weights: Tensor, form: Format) -> "HeldMatrix | None":
        """Hold float32 weights [outputs, inputs] in a format without scales; None if it cannot hold all."""
        is_half = form == HALF_FORMAT
        if weights.shape[1] % form.group or (is_half and weights.abs().max() > torch.finfo(torch.float16).max):
            return None
        columns = _columns((weights.half() if is_half else weights).numpy()).transpose(0, 2, 1)
        return cls(form, (weights.shape[0], weights.shape[1]), np.ascontiguousarray(columns))

    @classmethod
    def of_groups(cls, groups: Groups) -> "HeldMatrix":
        outputs, inputs = groups.numbers.shape
        form = Format(groups.bits, inputs // groups.scales.shape[1], groups.least is not None)
        lowest = 0 if form.has_least else 1 << form.bits - 1
        numbers = _columns((groups.numbers + lowest).astype(np.uint8))
        quads = numbers.reshape(len(numbers), LANES, inputs // form.group, -1, 4).transpose(0, 2, 3, 1, 4)
        if form.bits == 4:
            quads = quads[:, :, ::2] | quads[:, :, 1::2] << 4
        scales = [groups.scales] if groups.least is None else [groups.scales, groups.least]
        # Scales of GGUF's larger blocks are products of two numbers, and may be too small for float16.
        largest = max(float(np.abs(each).max()) for each in scales)
        power = 0 if largest == 0 else 14 - math.floor(math.log2(largest))
        halves = [_columns(np.ldexp(each, power).astype(np.float16)).transpose(0, 2, 1) for each in scales]
        parts = [quads, *(np.ascontiguousarray(each).view(np.uint8) for each in halves)]
        columns = np.concatenate([each.reshape(len(numbers), inputs // form.group, -1) for each in parts], 2)
        return cls(form, (outputs, inputs), columns, power)

    def entry(self, bias: Tensor | None = None) -> Integers:
        """Return the matrix as a part in the tables of `products`, which holds no reference to it or to `bias`."""
        address = 0 if bias is None else bias.data_ptr()
        number = FORMATS.index(self.form)
        return np.array([self.outputs, number, self._memory.ctypes.data, address, self._power], np.int64)

    def times(self, rows: Floats) -> Floats:
        """Map rows [rows, inputs] to new ones [rows, outputs]."""
        threads = threads_for(self.inputs * self.outputs, torch.get_num_threads())
        given = inputs_of(len(rows), self.inputs, threads)
        given.rows[:] = rows.reshape(-1)
        found = np.empty((len(rows), self.outputs), np.float32)
        run(multiply, threads, tile(), self.entry()[None], given, len(rows), self.inputs, found.reshape(-1))
        return found

    def numbers(self) -> Tensor:
        """Return the weights [outputs, inputs] in float32."""
        return torch.from_numpy(self.times(np.eye(self.inputs, dtype=np.float32)).T.copy())


def _columns(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values [outputs, any] as [columns, `LANES`, any], with zeros up to whole columns."""
    padded = np.zeros((-(-len(values) // LANES) * LANES, values.shape[1]), values.dtype)
    padded[: len(values)] = values
    return padded.reshape(-1, LANES, values.shape[1])
