"""Dequantisation of ggml's block formats, in which GGUF files store weights.

A block has a few scales and the weights that share them. Many blocks are dequantised at once and transposed: the
same byte of all blocks is contiguous, so that each operation is over long rows. Results equal those of the package
`gguf` bit for bit: products and sums have the same order, and each is rounded. Layouts: ggml-common.h and
ggml-quants.c of https://github.com/ggml-org/ggml.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Planes = Tensor
"""The transposed bytes of blocks: [bytes of a block, blocks]."""


@dataclass(frozen=True, slots=True)
class BlockParts:
    """Weights of blocks as `numbers` * `scale` + `least`, all in float32.

    `numbers` [..., blocks] are integers from -128 to 127, with a scale of 1 for formats that are not quantised.
    """

    numbers: Tensor
    scale: Tensor | None = None
    least: Tensor | None = None


def dequantise(kind: str, planes: Planes) -> Tensor:
    """Return the transposed weights [weights of a block, blocks] in float32. `kind` is one of `KINDS`."""
    parts = KINDS[kind](planes)
    weights = parts.numbers if parts.scale is None else parts.numbers.mul_(parts.scale)
    return (weights if parts.least is None else weights.add_(parts.least)).view(-1, planes.shape[1])


def _floats(planes: Planes, dtype: torch.dtype = torch.float16) -> Tensor:
    """Convert pairs of bytes, as 16-bit numbers of `dtype`, to float32 [bytes / 2, blocks]."""
    words = planes[1::2].to(torch.int16) << 8 | planes[::2]
    return words.view(dtype).float()


def _fours(packed: Tensor) -> Tensor:
    """Unpack bytes [runs, width, blocks] to 4-bit numbers in float32 [runs, 2, width, blocks], low bits first."""
    found = torch.empty((packed.shape[0], 2, *packed.shape[1:]), device=packed.device)
    found[:, 0] = packed & 15
    found[:, 1] = packed >> 4
    return found


def _fives(packed: Planes, fifth: Planes) -> Tensor:
    """Unpack bytes [16, blocks] and fifth bits [4, blocks] to 5-bit numbers in float32 [1, 2, 16, blocks]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=fifth.device)[:, None]
    bits = fifth[:, None] >> shifts & 1
    return _fours(packed[None]).add_(bits.view(1, 2, 16, -1), alpha=16)


def _q4_0(planes: Planes) -> BlockParts:
    return BlockParts(_fours(planes[None, 2:]).sub_(8), _floats(planes[:2]))


def _q4_1(planes: Planes) -> BlockParts:
    return BlockParts(_fours(planes[None, 4:]), *_floats(planes[:4]))


def _q5_0(planes: Planes) -> BlockParts:
    return BlockParts(_fives(planes[6:], planes[2:6]).sub_(16), _floats(planes[:2]))


def _q5_1(planes: Planes) -> BlockParts:
    return BlockParts(_fives(planes[8:], planes[4:8]), *_floats(planes[:4]))


def _q8_0(planes: Planes) -> BlockParts:
    return BlockParts(planes[2:].view(torch.int8).float(), _floats(planes[:2]))


def _scales(planes: Planes) -> tuple[Tensor, Tensor]:
    """Return scales and smallest weights of the eight runs of 32 weights in a block, in float32 [8, 1, blocks].

    Both have six bits. The first four of each have a byte each, whose upper two bits belong to the last four.
    """
    low, lower, mixed = torch.split(planes[4:16], 4)
    scales = torch.cat((low & 63, mixed & 15 | low >> 2 & 48))
    minima = torch.cat((lower & 63, mixed >> 4 | lower >> 2 & 48))
    scale, least = _floats(planes[:4])
    return (scale * scales.float())[:, None], (least * minima.float()).neg_()[:, None]


def _q4_k(planes: Planes) -> BlockParts:
    return BlockParts(_fours(planes[16:].view(4, 32, -1)).flatten(0, 1), *_scales(planes))


def _q5_k(planes: Planes) -> BlockParts:
    shifts = torch.arange(8, dtype=torch.uint8, device=planes.device)[:, None, None]
    fives = _fours(planes[48:].view(4, 32, -1)).flatten(0, 1).add_(planes[16:48] >> shifts & 1, alpha=16)
    return BlockParts(fives, *_scales(planes))


def _q6_k(planes: Planes) -> BlockParts:
    # The lower four bits of 128 weights are in the lower, then the upper halves of 64 bytes.
    sixes = _fours(planes[:128].view(2, 64, -1)).view(2, 4, 32, -1)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=planes.device)[:, None, None]
    sixes.add_(planes[128:192].view(2, 1, 32, -1) >> shifts & 3, alpha=16).sub_(32)
    scales = _floats(planes[208:]) * planes[192:208].view(torch.int8).float()
    return BlockParts(sixes.view(16, 16, -1), scales[:, None])


def _iq4_nl(planes: Planes) -> BlockParts:
    values = torch.tensor(IQ4_VALUES, device=planes.device)
    return BlockParts(values[_fours(planes[None, 2:]).int()], _floats(planes[:2]))


def _mxfp4(planes: Planes) -> BlockParts:
    # The exponents of powers of two; the two smallest are denormal.
    exponents = planes[0].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents, exponents - 1 << 23)
    values = torch.tensor(MXFP4_VALUES, device=planes.device)
    return BlockParts(values[_fours(planes[None, 1:]).int()], bits.view(torch.float32))


MXFP4_VALUES: Final = tuple(map(float, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)))
"""The sixteen values of MXFP4, doubled, from ggml."""
IQ4_VALUES: Final = tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)))
"""The sixteen values of IQ4_NL, from ggml."""
KINDS: Final[Mapping[str, Callable[[Planes], BlockParts]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "F16": lambda planes: BlockParts(_floats(planes)),
    "BF16": lambda planes: BlockParts(_floats(planes, torch.bfloat16)),
}
"""The supported block formats by their ggml names."""
