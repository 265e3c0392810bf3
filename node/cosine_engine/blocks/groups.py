"""Weights in four or eight bits, in groups that share a scale.

These are the groups of GGUF's blocks, whose weights are not rounded again, or of other weights, which are rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_engine.blocks.kinds import KINDS
from cosine_engine.blocks.matrix import BlockMatrix
from cosine_engine.kernels.compilation import Floats
from cosine_engine.kernels.products import GROUP

FOUR_BITS: Final = ("Q4_0", "Q4_1", "Q4_K")
"""The formats with four bits. Others have eight."""
ROWS_AT_ONCE: Final = 4096
"""Rows of a matrix that are unpacked at once, since numbers take four bytes until they are packed."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [outputs, inputs] with weights `numbers` * `scales` + `least` of their group.

    `numbers` are from 0 on with `least`, otherwise half of them are negative: from -8 with four `bits`, from -128
    with eight. `scales` and `least` are [outputs, groups of a row].
    """

    bits: int
    numbers: npt.NDArray[np.int16]
    scales: Floats
    least: Floats | None = None

    @classmethod
    def of_weights(cls, weights: Tensor, bits: int) -> "Groups":
        """Round weights [outputs, inputs] in float32; `inputs` is a multiple of `GROUP`."""
        grouped = weights.reshape(len(weights), -1, GROUP)
        tiny = torch.finfo(torch.float16).smallest_normal
        if bits == 4:
            low, high = grouped.aminmax(dim=2)
            least = low.half().float()
            scales = ((high - least) / 15).clamp_min(tiny).half().float()
            lowest, highest = 0, 15
        else:
            # In eight bits, a smallest weight is not worth another product.
            scales, least = (grouped.abs().amax(2) / 127).clamp_min(tiny).half().float(), None
            lowest, highest = -128, 127
        centre = grouped if least is None else grouped - least[..., None]
        numbers = (centre / scales[..., None]).round_().clamp_(lowest, highest).to(torch.int16)
        return cls(
            bits, numbers.view(weights.shape).numpy(), scales.numpy(), None if least is None else least.numpy()
        )

    @classmethod
    def of_blocks(cls, matrix: BlockMatrix) -> "Groups | None":
        """Return the weights of a GGUF file as they are; None for a format without scales."""
        kind, rows = matrix.layout.kind, matrix.layout.rows
        found = [
            _of_planes(kind, matrix.planes_of(part), len(part))
            for part in torch.split(torch.arange(rows), ROWS_AT_ONCE)
        ]
        return None if None in found else cls._stacked([part for part in found if part is not None])

    @classmethod
    def _stacked(cls, parts: "Sequence[Groups]") -> "Groups":
        """Join the outputs of matrices of one format."""
        smallest = [part.least for part in parts if part.least is not None]
        return cls(
            parts[0].bits,
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.scales for part in parts]),
            np.concatenate(smallest) if smallest else None,
        )


def _of_planes(kind: str, planes: Tensor, rows: int) -> Groups | None:
    """Return the groups of the transposed blocks [bytes of a block, blocks] of some rows."""
    parts = KINDS[kind](planes)
    if parts.scale is None:
        return None

    def by_row(values: Tensor) -> Tensor:
        """Map [of a block, blocks] to [rows, of a row]."""
        values = values.reshape(-1, rows, planes.shape[1] // rows)
        return values.permute(1, 2, 0).reshape(rows, -1)

    return Groups(
        4 if kind in FOUR_BITS else 8,
        by_row(parts.numbers).to(torch.int16).numpy(),
        by_row(parts.scale).contiguous().numpy(),
        None if parts.least is None else by_row(parts.least).contiguous().numpy(),
    )
