"""Row tiles: the numbers of rows for which a matrix kernel gives each row the same result bit for bit.

Libraries choose a kernel by the number of rows (tokens), and kernels sum in different orders: in 16 bits, the
result of a token then depends on the other tokens of its pass. In deterministic mode, the rows of a product are
therefore cut and padded to tiles whose sizes all give equal results. These sizes depend on hardware and libraries,
so they are measured on the loaded model.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from cosine_engine.blocks.experts import experts_in_blocks
from cosine_engine.blocks.matrix import BlockMatrix

MOST_ROWS: Final = 512
"""Maximum number of rows that is measured, and thus computed at once."""
TRIED_ROWS: Final = (
    *range(1, 18),
    *(20, 24, 28, 31, 32, 33, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, MOST_ROWS),
)
"""Numbers of rows that are measured: all small ones, and those around powers of two, where kernels change."""
FIXED_ROWS: Final = 16
"""The number of rows that all others are compared with, and the only tile size if no other gives equal results. It
is the number of rows of a tile of CPU matrix units, and about the number of tokens of a request with its draft."""

VECTOR: Final = 64
"""Number of 16-bit elements in two AVX-512 registers, which PyTorch's loops process at once; half as many in
float32."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Tile sizes in ascending order: numbers of rows for which each row has the same result."""

    sizes: tuple[int, ...]

    def in_whole_vectors(self, widths: Iterable[int]) -> "RowTiles":
        """Keep the sizes at which an elementwise function over [rows, width] does not depend on a row's place.

        PyTorch's CPU loops process `VECTOR` elements at once and the remainder one by one, with a different
        implementation of functions such as cosine and exponential.
        """
        sizes = self.sizes
        for width in widths:
            whole = VECTOR // math.gcd(VECTOR, width)
            if whole <= FIXED_ROWS:
                sizes = tuple(size for size in sizes if size % whole == 0)
            else:
                sizes = tuple(size for size in sizes if size * width < VECTOR // 2)
        return RowTiles(sizes or (VECTOR,))

    @property
    def limit(self) -> int:
        """The largest tile."""
        return self.sizes[-1]

    def padded(self, rows: int) -> int:
        """Return the smallest tile that holds this many rows, which are at most `limit`."""
        return self.sizes[bisect_left(self.sizes, rows)]

    def cut(self, rows: int) -> tuple[int, ...]:
        """Return the sizes of the tiles that hold this many rows.

        Only the last one has padding: at most half of it, unless there is no smaller tile.
        """
        found = []
        while rows > 0:
            place = bisect_left(self.sizes, rows)
            if place == len(self.sizes) or (place and self.sizes[place] > max(2 * rows, FIXED_ROWS)):
                place -= 1
            found.append(self.sizes[place])
            rows -= found[-1]
        return tuple(found)

    def pad(self, rows: Tensor) -> Tensor:
        """Pad [..., rows, width] with rows of zeros to the end of the last tile."""
        padding = sum(self.cut(rows.shape[-2])) - rows.shape[-2]
        return F.pad(rows, (0, 0, 0, padding)) if padding else rows


FIXED_TILES: Final = RowTiles((FIXED_ROWS,))
"""Tiles that need no measurement: every computation has the same shape."""


@dataclass(frozen=True, slots=True)
class RowTileSet:
    """The tiles of a model's products with its weights, and of its attention, whose rows are query heads."""

    products: RowTiles
    attention: RowTiles


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of a pass's rows: short ones to one rectangle (default: on CUDA), or all to `tiles`."""

    to_rectangle: bool | None = None
    tiles: RowTileSet | None = None


USUAL_PADDING: Final = Padding()


@dataclass(frozen=True, slots=True)
class RowKernel:
    """A function from [rows, width] to [rows, any] that computes each row independently except for rounding."""

    width: int
    compute: Callable[[Tensor], Tensor]


def measure_tiles(
    kernels: Iterable[RowKernel], *, dtype: torch.dtype, device: torch.device, most_rows: int = MOST_ROWS
) -> RowTiles:
    """Return the numbers of rows up to `most_rows` at which all kernels give the same bits as with `FIXED_ROWS`."""
    alike = [count for count in TRIED_ROWS if count <= most_rows]
    for kernel in kernels:
        # A separate generator: measuring must not change the global random state.
        noise = torch.randn(alike[-1], kernel.width, generator=torch.Generator().manual_seed(0))
        rows = noise.to(device, dtype)
        expected = torch.cat([kernel.compute(tile) for tile in torch.split(FIXED_TILES.pad(rows), FIXED_ROWS)])
        # At `FIXED_ROWS` itself a row could only depend on the other rows' values, which no padding can avoid.
        alike = [count for count in alike if count == FIXED_ROWS or _is_alike(kernel, rows, expected, count)]
    return RowTiles(tuple(alike))


def _is_alike(kernel: RowKernel, rows: Tensor, expected: Tensor, count: int) -> bool:
    """True if `count` rows at a time give the expected results."""
    # About one in 4,000 differences in the order of float32 sums is visible in bfloat16 (2^-23 against 2^-9), so
    # many numbers are compared.
    times = min(len(rows) // count, -(-(1 << 18) // (count * expected.shape[1])))
    return all(
        torch.equal(kernel.compute(rows[start : start + count]), expected[start : start + count])
        for start in range(0, times * count, count)
    )


def tile_experts(model: Any, tiles: RowTiles) -> None:
    """Let a mixture of experts pad the rows of each expert to a tile. Other models are not changed."""

    def experts_in_tiles(
        experts: Any, hidden: Tensor, expert_of: Tensor, weight_of: Tensor, *_: object, **__: object
    ) -> Tensor:
        """Map [tokens, hidden] to the same; each token's experts and their weights are [tokens, experts]."""
        tokens, chosen = expert_of.shape
        rows = torch.bincount(expert_of.flatten(), minlength=experts.num_experts)
        sizes = torch.tensor((0, *tiles.sizes), device=rows.device)
        missing = sizes[torch.searchsorted(sizes, rows)] - rows
        padding = torch.arange(len(rows), device=rows.device).repeat_interleave(missing)
        # Each pair of a token and an expert is passed as a token with one expert; padding outputs are not used.
        pairs = hidden.repeat_interleave(chosen, 0)
        padded = torch.cat([pairs, pairs[:1].expand(len(padding), -1)])
        expert_of_pair = torch.cat([expert_of.flatten(), padding.to(expert_of.dtype)])[:, None]
        are_in_blocks = any(isinstance(weights, BlockMatrix) for weights in experts.children())
        compute = experts_in_blocks if are_in_blocks else grouped_mm_experts_forward
        output = compute(experts, padded, expert_of_pair, torch.ones_like(padded[:, :1]))
        by_token = output[: len(pairs)].view(tokens, chosen, -1)
        weighted: Tensor = (by_token * weight_of[..., None]).sum(1)
        return weighted.to(hidden.dtype)

    if getattr(model.config.get_text_config(), "_experts_implementation", None) is None:
        return
    name = f"cosine_tiles_of_{'_'.join(map(str, tiles.sizes))}"
    ALL_EXPERTS_FUNCTIONS.register(name, experts_in_tiles)
    model.set_experts_implementation(name)
