"""Numbers of rows are alike where every row comes out as among many; their smallest quantum is found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cosine_node.engine.torch.row_tiles import FIXED_ROWS, MOST_ROWS, RowKernel, RowTiles, measure_tiles

KIND: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}


def rounding_where(is_other: Callable[[int], bool]) -> RowKernel:
    """A kernel that rounds otherwise at some numbers of rows."""

    def compute(rows: Tensor) -> Tensor:
        return rows * 2 + (1e-6 if is_other(len(rows)) else 0.0)

    return RowKernel(8, compute)


@pytest.mark.parametrize(
    ("is_other", "quantum"),
    [
        (lambda rows: False, 1),
        (lambda rows: rows == 1, 2),
        (lambda rows: rows < 4, 4),
        (lambda rows: rows % 8 != 0, 8),
        (lambda rows: rows < 17, 32),
    ],
)
def test_the_smallest_quantum_is_found(is_other: Callable[[int], bool], quantum: int) -> None:
    assert measure_tiles([rounding_where(is_other)], **KIND) == RowTiles(quantum, MOST_ROWS)


def test_one_kernel_that_needs_more_decides_for_all() -> None:
    kernels = [rounding_where(lambda rows: False), rounding_where(lambda rows: rows < 3)]
    assert measure_tiles(kernels, **KIND).quantum == 4


def test_where_no_numbers_are_alike_tiles_have_one_height() -> None:
    assert measure_tiles([rounding_where(lambda rows: rows < MOST_ROWS)], **KIND) == RowTiles(
        FIXED_ROWS, FIXED_ROWS
    )


def test_a_row_that_depends_on_those_beside_it_is_noticed() -> None:
    beside = RowKernel(8, lambda rows: rows + rows.mean(0))
    assert measure_tiles([beside], **KIND) == RowTiles(FIXED_ROWS, FIXED_ROWS)


def test_rows_are_padded_with_zeros_up_to_the_quantum() -> None:
    tiles = RowTiles(4, 64)
    assert [tiles.padded(rows) for rows in (0, 1, 4, 5)] == [0, 4, 4, 8]
    padded = tiles.pad(torch.ones(2, 5, 3))
    assert padded.shape == (2, 8, 3)
    assert (float(padded.sum()), float(padded[:, 5:].abs().sum())) == (30.0, 0.0)
