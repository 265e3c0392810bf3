"""The numbers of rows at which a kernel gives a row the same result bit for bit, measured on the loaded model.

Libraries choose a kernel by the number of rows, and each sums in an order of its own: in 16 bits a token then
depends on what it is packed with. Hardware and library decide which numbers are alike, so it is tried out.
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

from cosine_node.engine.blocks.experts import experts_in_blocks
from cosine_node.engine.blocks.matrix import BlockMatrix

MOST_ROWS: Final = 512
"""The most rows that are tried out, and so the most that are computed at once."""
TRIED_ROWS: Final = (
    *range(1, 18),
    *(20, 24, 28, 31, 32, 33, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, MOST_ROWS),
)
"""All small numbers, and around those at which kernels are known to change, which are powers of two."""
FIXED_ROWS: Final = 16
"""The number of rows that all others are compared with, and the only one where none is alike: the rows of a tile of
the matrix units of CPUs, and about the tokens of a request with its draft."""

KEY_BLOCK: Final = 32
"""So many keys a CPU's matrix units sum at once in 16 bits: where hidden keys change nothing, a key may stand any
number of such blocks further back."""

VECTOR: Final = 64
"""Numbers of 16 bits in two AVX-512 registers: so many PyTorch's loops take at a time, in float32 half as many."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """The numbers of rows that are computed at once, rising: at each of these a row has the same result."""

    sizes: tuple[int, ...]

    def in_whole_vectors(self, widths: Iterable[int]) -> "RowTiles":
        """Those at which a function of each of rows * width numbers does not depend on the place of a row.

        PyTorch's CPU code takes `VECTOR` numbers at a time and the rest, if at all, one by one, with another cosine
        or exponential for those.
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
        """The most rows at once."""
        return self.sizes[-1]

    def padded(self, rows: int) -> int:
        """So many rows, at most the limit, with what pads them to one tile."""
        return self.sizes[bisect_left(self.sizes, rows)]

    def cut(self, rows: int) -> tuple[int, ...]:
        """The sizes of the tiles that hold so many rows; only the last may have padding, of half of it at most.

        Unless there is no smaller tile.
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
        """[..., rows, width] with rows of zeros up to the end of the last tile."""
        padding = sum(self.cut(rows.shape[-2])) - rows.shape[-2]
        return F.pad(rows, (0, 0, 0, padding)) if padding else rows


FIXED_TILES: Final = RowTiles((FIXED_ROWS,))
"""What needs no measuring: every computation is of one shape."""


@dataclass(frozen=True, slots=True)
class RowTileSet:
    """The tiles of a model's products with its weights, and of its attention, where query heads count as rows.

    `attention_over_blocks` are those of a call over a multiple of `KEY_BLOCK` keys. `hidden_keys` is up to how many
    keys of a call hidden ones change no bit; 0 if it is not known.
    """

    products: RowTiles
    attention: RowTiles
    attention_over_blocks: RowTiles
    hidden_keys: int = 0

    def attention_of(self, keys: int) -> RowTiles:
        """The tiles of a call over so many keys."""
        return self.attention if keys % KEY_BLOCK else self.attention_over_blocks


@dataclass(frozen=True, slots=True)
class RowKernel:
    """A computation that takes [rows, width] to [rows, any], each row by itself but for rounding."""

    width: int
    compute: Callable[[Tensor], Tensor]


def measure_tiles(
    kernels: Iterable[RowKernel], *, dtype: torch.dtype, device: torch.device, most_rows: int = MOST_ROWS
) -> RowTiles:
    """The numbers of rows up to `most_rows` at which all kernels give each row what it has among `FIXED_ROWS`."""
    alike = [count for count in TRIED_ROWS if count <= most_rows]
    for kernel in kernels:
        # Of their own generator: measuring must not change what others draw.
        noise = torch.randn(alike[-1], kernel.width, generator=torch.Generator().manual_seed(0))
        rows = noise.to(device, dtype)
        expected = torch.cat([kernel.compute(tile) for tile in torch.split(FIXED_TILES.pad(rows), FIXED_ROWS)])
        # There no row can differ but by what is beside it, which no padding would change.
        alike = [count for count in alike if count == FIXED_ROWS or _is_alike(kernel, rows, expected, count)]
    return RowTiles(tuple(alike))


def _is_alike(kernel: RowKernel, rows: Tensor, expected: Tensor, count: int) -> bool:
    """True if rows come out as expected, so many at a time."""
    # Of two orders of float32 sums about one in 4,000 shows in bfloat16 (2^-23 beside its 2^-9): many are compared.
    times = min(len(rows) // count, -(-(1 << 18) // (count * expected.shape[1])))
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
        sizes = torch.tensor((0, *tiles.sizes), device=rows.device)
        missing = sizes[torch.searchsorted(sizes, rows)] - rows
        padding = torch.arange(len(rows), device=rows.device).repeat_interleave(missing)
        # Each pair of a token and an expert is given as a token with one expert; nobody reads what pads them.
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
