"""In deterministic mode a request gives the same bits under any load; otherwise it need not.

Numbers of rows are equivalent if every row has the same bits as in a tile of fixed height.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from cosine_engine.forward.row_tiles import (
    FIXED_ROWS,
    TRIED_ROWS,
    Padding,
    RowKernel,
    RowTiles,
    measure_tiles,
    tile_experts,
)
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.invariance_self_test import find_row_tiles
from tests.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.engine.tiny_models import ARCHITECTURES, LATENT, VOCAB, WINDOWED, build
from tests.thoroughness import THOROUGH, soak_rest

CPU = torch.device("cpu")


def differences(config: Any, *, is_deterministic: bool, requests: int) -> int:
    """Return the number of requests with other results together than alone, in bfloat16."""
    model = build(config).to(torch.bfloat16)
    tiles = find_row_tiles(model) if is_deterministic else None
    engine = TorchEngine(model, pool_tokens=4096, padding=Padding(tiles=tiles))
    asked = draw_requests(requests, vocab_tokens=VOCAB, longest=60, seed=1)
    for one in asked:
        one.expected = serve_alone(engine, one, 8)
    return serve_together(engine, asked, at_once=7, seed=2)


# Finding the row tiles takes nearly all of the time of a case: one model for each mechanism.
CASES = {
    "Mixtral": ARCHITECTURES["Mixtral"],
    "Llama": ARCHITECTURES["Llama"],
    "Gemma2 with a window": WINDOWED["Gemma2"],
    "GptOss": WINDOWED["GptOss"],
    "GPT2": ARCHITECTURES["GPT2"],
    "DeepseekV3": LATENT["DeepseekV3"],
}


def test_requests_give_the_same_bits_together_as_alone() -> None:
    assert differences(CASES["Llama"](), is_deterministic=True, requests=8) == 0


@pytest.mark.thorough
def test_in_other_passes_they_do_not() -> None:
    assert differences(CASES["Llama"](), is_deterministic=False, requests=8) > 0


@pytest.mark.soak
@THOROUGH
@pytest.mark.parametrize("name", soak_rest(CASES))
def test_many_requests_give_the_same_bits_together_as_alone(name: str) -> None:
    assert differences(CASES[name](), is_deterministic=True, requests=25) == 0


def rounding_where(is_other: Callable[[int], bool]) -> RowKernel:
    """A kernel with other rounding at some numbers of rows."""

    def compute(rows: Tensor) -> Tensor:
        return rows * 2 + (1e-6 if is_other(len(rows)) else 0.0)

    return RowKernel(8, compute)


@pytest.mark.parametrize(
    ("kernels", "sizes"),
    [
        ([rounding_where(lambda rows: False)], TRIED_ROWS),
        ([rounding_where(lambda rows: 16 < rows < 512)], (*range(1, 17), 512)),
        ([rounding_where(lambda rows: rows % 8 != 0)], [rows for rows in TRIED_ROWS if rows % 8 == 0]),
        (
            [rounding_where(lambda rows: rows > 32), rounding_where(lambda rows: rows < 16)],
            (16, 17, 20, 24, 28, 31, 32),
        ),
        # No numbers of rows are equivalent, or a row depends on its neighbours.
        ([rounding_where(lambda rows: rows == FIXED_ROWS)], [FIXED_ROWS]),
        ([RowKernel(8, lambda rows: rows + rows.mean(0))], [FIXED_ROWS]),
    ],
)
def test_the_numbers_of_rows_that_are_alike_in_all_kernels_are_found(
    kernels: list[RowKernel], sizes: Iterable[int]
) -> None:
    assert measure_tiles(kernels, dtype=torch.float32, device=CPU) == RowTiles(tuple(sizes))


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [
        (0, ()),
        (1, (2,)),
        # Padding of more than half a tile takes longer than another tile.
        (17, (16, 2)),
        (200, (16,) * 12 + (8,)),
        (520, (512, 8)),
    ],
)
def test_rows_are_cut_into_tiles_with_little_padding(rows: int, tiles: tuple[int, ...]) -> None:
    assert RowTiles((2, 8, 16, 512)).cut(rows) == tiles


@pytest.mark.parametrize(
    ("widths", "sizes"),
    [
        ([64, 128, 576], (1, 4, 8, 12, 16, 17, 32, 64)),
        # Four rows of 16 numbers fill whole vectors.
        ([16, 64], (4, 8, 12, 16, 32, 64)),
        # The few numbers of a gate are computed one by one.
        ([1], (1, 4, 8, 12, 16, 17)),
        ([16, 1], (4, 8, 12, 16)),
        # For any width 64 rows fill whole vectors.
        ([33], (64,)),
    ],
)
def test_rows_fill_vectors_or_reach_none(widths: list[int], sizes: tuple[int, ...]) -> None:
    assert RowTiles((1, 4, 8, 12, 16, 17, 32, 64)).in_whole_vectors(widths) == RowTiles(sizes)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "GPT2"])
def test_experts_in_tiles_compute_what_experts_compute(name: str) -> None:
    model = build(ARCHITECTURES[name]())
    tiled = copy.deepcopy(model)
    tile_experts(tiled, RowTiles((4, 8, 64)))
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(tiled(ids).logits, model(ids).logits)
