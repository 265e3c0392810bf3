"""The numbers of rows at which a kernel gives a row the same result bit for bit, measured on the loaded model.

Libraries choose a kernel by the number of rows, and each sums in an order of its own: in 16 bits a token then
depends on what it is packed with. Hardware and library decide which numbers are alike, so it is tried out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

MOST_ROWS: Final = 512
"""The most rows that are tried out, and so the most that are computed at once."""
TRIED_ROWS: Final = (*range(1, 18), 20, 24, 28, 31, 32, 33, 40, 48, 64, 96, 128, 160, 192, 256, 320, 384, MOST_ROWS)
"""All small numbers, and around those at which kernels are known to change, which are powers of two."""
FIXED_ROWS: Final = 32
"""The height of tiles where no numbers are alike; PyTorch's attention on CPUs takes up to 32 queries at a time."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Rows are padded to a multiple of `quantum` and computed at most `limit` at a time, a multiple of it too."""

    quantum: int
    limit: int

    def padded(self, rows: int) -> int:
        """Rows with their padding."""
        return -(-rows // self.quantum) * self.quantum

    def pad(self, rows: Tensor) -> Tensor:
        """[..., rows, width] with rows of zeros up to a multiple of the quantum."""
        padding = -rows.shape[-2] % self.quantum
        return F.pad(rows, (0, 0, 0, padding)) if padding else rows


@dataclass(frozen=True, slots=True)
class RowTileSet:
    """The tiles of a model's products with its weights, and of its attention, where query heads count as rows."""

    products: RowTiles
    attention: RowTiles


@dataclass(frozen=True, slots=True)
class RowKernel:
    """A computation that takes [rows, width] to [rows, any], each row by itself but for rounding."""

    width: int
    compute: Callable[[Tensor], Tensor]


def measure_tiles(kernels: Iterable[RowKernel], *, dtype: torch.dtype, device: torch.device) -> RowTiles:
    """The smallest quantum that suits all kernels: each row comes out as among `MOST_ROWS`."""
    unlike: set[int] = set()
    for kernel in kernels:
        # Of their own generator: measuring must not change what others draw.
        noise = torch.randn(MOST_ROWS, kernel.width, generator=torch.Generator().manual_seed(0))
        rows = noise.to(device, dtype)
        expected = kernel.compute(rows)
        unlike.update(count for count in TRIED_ROWS if not _is_alike(kernel, rows, expected, count))
    # Beyond these, tiles of one fixed height waste no more.
    for quantum in (1, 2, 4, 8, 16, 32):
        if all(count % quantum for count in unlike):
            return RowTiles(quantum, MOST_ROWS)
    return RowTiles(FIXED_ROWS, FIXED_ROWS)


def _is_alike(kernel: RowKernel, rows: Tensor, expected: Tensor, count: int) -> bool:
    """True if rows come out as expected, so many at a time."""
    # Of two orders of float32 sums about one in 4,000 shows in bfloat16 (2^-23 beside its 2^-9): many are compared.
    times = min(MOST_ROWS // count, -(-(1 << 18) // (count * expected.shape[1])))
    return all(
        torch.equal(kernel.compute(rows[start : start + count]), expected[start : start + count])
        for start in range(0, times * count, count)
    )


def tile_experts(model: Any, tiles: RowTiles) -> None:
    """Let a mixture of experts pad the rows that come to each expert; other models are left as they are."""

    def experts_in_tiles(
        experts: Any, hidden: Tensor, expert_of: Tensor, weight_of: Tensor, *_: object, **__: object
    ) -> Tensor:
        """[tokens, hidden] to the same; the experts of each token and their weights are [tokens, experts]."""
        tokens, chosen = expert_of.shape
        rows = torch.bincount(expert_of.flatten(), minlength=experts.num_experts)
        padding = torch.arange(len(rows), device=rows.device).repeat_interleave(-rows % tiles.quantum)
        # Each pair of a token and an expert is given as a token with one expert; nobody reads what pads them.
        pairs = hidden.repeat_interleave(chosen, 0)
        padded = torch.cat([pairs, pairs[:1].expand(len(padding), -1)])
        expert_of_pair = torch.cat([expert_of.flatten(), padding.to(expert_of.dtype)])[:, None]
        output = grouped_mm_experts_forward(experts, padded, expert_of_pair, torch.ones_like(padded[:, :1]))
        by_token = output[: len(pairs)].view(tokens, chosen, -1)
        weighted: Tensor = (by_token * weight_of[..., None]).sum(1)
        return weighted.to(hidden.dtype)

    if getattr(model.config.get_text_config(), "_experts_implementation", None) is None:
        return
    name = f"cosine_tiles_of_{tiles.quantum}"
    ALL_EXPERTS_FUNCTIONS.register(name, experts_in_tiles)
    model.set_experts_implementation(name)
