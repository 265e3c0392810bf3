"""Blocks equal the numbers of the package `gguf`, and a matrix in blocks computes with these."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor, nn

from cosine_engine.blocks.kinds import KINDS, dequantise
from cosine_engine.blocks.matrix import SIZES, BlockEmbedding, BlockLayout, BlockMatrix

ROWS, COLUMNS = 11, 512
BLOCKS = 513


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_that_of_gguf(kind: str) -> None:
    weights, size_bytes = SIZES[kind]
    # All bytes occur, so that scales include infinite, denormal and negative numbers and NaN.
    blocks = np.random.default_rng(7).integers(0, 256, (BLOCKS, size_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, GGMLQuantizationType[kind]).reshape(BLOCKS, weights)
    found = dequantise(kind, torch.from_numpy(blocks.T.copy())).numpy().T
    is_number = ~np.isnan(expected)
    assert found.dtype == np.float32
    assert is_number.mean() > 0.9
    assert (found.view(np.uint32) == expected.view(np.uint32))[is_number].all()
    assert np.isnan(found[~is_number]).all()


def test_the_kinds_of_files_that_people_run_are_known() -> None:
    assert KINDS.keys() >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"}


TILES = pytest.mark.parametrize(
    "tile_weights", [ROWS * COLUMNS, 3 * COLUMNS], ids=["one tile", "the last not full"]
)


def matrix_of(kind: str, tile_weights: int = 3 * COLUMNS) -> tuple[BlockMatrix, Tensor]:
    """Return a matrix of random blocks with finite scales, and its numbers."""
    weights, size_bytes = SIZES[kind]
    stored = np.random.default_rng(3).integers(0, 60, (ROWS, COLUMNS // weights * size_bytes), dtype=np.uint8)
    matrix = BlockMatrix(layout := BlockLayout(kind, ROWS, COLUMNS, tile_weights))
    matrix.planes = layout.laid(torch.from_numpy(stored))
    return matrix, torch.from_numpy(dequantize(stored, GGMLQuantizationType[kind]))


@TILES
@pytest.mark.parametrize("kind", SIZES)
def test_its_rows_are_those_of_its_numbers(kind: str, tile_weights: int) -> None:
    matrix, numbers = matrix_of(kind, tile_weights)
    asked = torch.tensor([[10, 0, 3], [3, 9, 1]])
    assert torch.equal(matrix.rows_of(asked), numbers[asked])


@TILES
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("shape", [(COLUMNS,), (1, COLUMNS), (2, 3, COLUMNS)])
def test_its_products_are_those_of_its_numbers(kind: str, shape: tuple[int, ...], tile_weights: int) -> None:
    matrix, numbers = matrix_of(kind, tile_weights)
    vectors = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = vectors @ numbers.double().T
    found = matrix.times(vectors.float())
    assert found.shape == expected.shape
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@TILES
def test_each_expert_has_a_matrix_of_its_own(tile_weights: int) -> None:
    weights, size_bytes = SIZES["Q4_K"]
    shape = (3, ROWS, COLUMNS // weights * size_bytes)
    stored = np.random.default_rng(3).integers(0, 60, shape, dtype=np.uint8)
    layout = BlockLayout("Q4_K", ROWS, COLUMNS, tile_weights, experts=3)
    experts = BlockMatrix(layout)
    experts.planes = layout.laid(torch.from_numpy(stored))
    assert experts.planes.nbytes == layout.size_bytes
    vectors = torch.randn((2, COLUMNS), generator=torch.Generator().manual_seed(0))
    for expert, rows in enumerate(stored):
        numbers = torch.from_numpy(dequantize(rows, GGMLQuantizationType.Q4_K))
        expected = vectors @ numbers.T
        found = experts.times(vectors, expert=expert)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


class Scaled(nn.Embedding):
    """An embedding of an unknown class."""

    def forward(self, numbers: Tensor) -> Tensor:
        return super().forward(numbers) * torch.tensor(3.0).to(self.weight.dtype)


def test_an_embedding_keeps_what_its_kind_does() -> None:
    matrix, numbers = matrix_of("Q6_K")
    embedding = Scaled(ROWS, COLUMNS, padding_idx=0)
    BlockEmbedding.stand_in(embedding, matrix)
    asked = torch.tensor([[1, 10]])
    assert torch.equal(embedding(asked), numbers[asked] * 3)
    assert [name for name, _ in embedding.named_parameters()] == []
    assert embedding.bfloat16()(asked).dtype is torch.bfloat16
