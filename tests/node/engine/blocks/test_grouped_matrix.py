"""Weights in groups: GGUF's blocks as they are, others rounded once; products whose rows are independent."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cosine_node.engine.blocks.grouped_matrix import FOUR_BITS, GroupedMatrix, Groups
from cosine_node.engine.blocks.matrix import SIZES
from tests.node.engine.blocks.test_matrix import matrix_of
from tests.thoroughness import quick_first

BLOCK_KINDS = [kind for kind in SIZES if kind not in ("F16", "BF16")]


def noise(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def values_of(groups: Groups) -> Tensor:
    """Return the weights [outputs, inputs] of groups in float64."""
    size = groups.numbers.shape[1] // groups.scales.shape[1]
    least = np.zeros_like(groups.scales) if groups.least is None else groups.least
    scales, smallest = (np.repeat(each.astype(np.float64), size, 1) for each in (groups.scales, least))
    return torch.from_numpy(groups.numbers * scales + smallest)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_blocks_of_a_file_are_not_rounded_again(kind: str) -> None:
    matrix, numbers = matrix_of(kind)
    groups = Groups.of_blocks(matrix)
    assert groups is not None and groups.bits == (4 if kind in FOUR_BITS else 8)
    assert groups.numbers.min() >= -(1 << groups.bits - 1) and groups.numbers.max() < 1 << groups.bits - 1
    # A smallest weight and eight scales are added in float32.
    scale = numbers.abs().max()
    torch.testing.assert_close(values_of(groups).float(), numbers, rtol=1e-6, atol=float(1e-6 * scale))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_formats_that_are_not_quantised_have_no_groups(kind: str) -> None:
    assert Groups.of_blocks(matrix_of(kind)[0]) is None


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_rounded_to_the_nearest_number_of_their_group(bits: int) -> None:
    weights = noise(70, 96)
    weights[3, 32:64] = 0
    groups = Groups.of_weights(weights, bits)
    step = np.repeat(groups.scales, 32, 1)
    assert (np.abs(values_of(groups).numpy() - weights.numpy()) <= 0.501 * step + 1e-6).all()
    assert not values_of(groups)[3, 32:64].any()


def matrix(*parts: tuple[int, int]) -> tuple[GroupedMatrix, Tensor]:
    """Return a matrix of random parts of (outputs, bits), and its weights."""
    groups = [Groups.of_weights(noise(outputs, 192, seed=i), bits) for i, (outputs, bits) in enumerate(parts)]
    return GroupedMatrix(*groups), torch.cat([values_of(each) for each in groups])


SHAPES = pytest.mark.parametrize("parts", [[(70, 4)], [(70, 8)], [(64, 4), (32, 8), (32, 8), (16, 4)]], ids=str)


@SHAPES
def test_products_round_inputs_to_eight_bits_by_groups(parts: list[tuple[int, int]]) -> None:
    held, weights = matrix(*parts)
    rows = noise(9, 192)
    inputs = rows.double().view(9, -1, 32)
    step = inputs.abs().amax(2, keepdim=True) / 127
    rounded = ((inputs / step).round() * step).view(9, 192)
    found = torch.from_numpy(held.times(rows.numpy())).double()
    # Smallest weights multiply inputs that are not rounded.
    error = (found - rows.double() @ weights.T).abs().max()
    assert error < 0.1 * (rounded @ weights.T).std()
    assert error > 1e-4


@SHAPES
def test_a_row_has_the_same_bits_among_any_others(parts: list[tuple[int, int]]) -> None:
    held, _ = matrix(*parts)
    rows = noise(40, 192).numpy()
    pairs = np.concatenate([held.times(rows[i : i + 2]) for i in range(0, 40, 2)])
    for count in (2, 4, 5, 8, 10, 20, 40):
        assert (np.concatenate([held.times(part) for part in np.split(rows, 40 // count)]) == pairs).all()


def test_its_weights_can_be_read_back_and_joined() -> None:
    held, weights = matrix((70, 4), (32, 8))
    torch.testing.assert_close(held.numbers().double(), weights, rtol=1e-2, atol=1e-3)
    joined = GroupedMatrix.joined([matrix((70, 4))[0], matrix((32, 8))[0]])
    rows = noise(3, 192).numpy()
    assert joined.times(rows).shape == (3, 102)


def test_released_weights_are_not_used() -> None:
    held, _ = matrix((70, 4))
    held.release()
    with pytest.raises(RuntimeError, match="were released"):
        held.times(noise(1, 192).numpy())


@pytest.mark.parametrize("kind", quick_first(["Q4_1", "Q6_K", "Q5_0"]))
def test_the_products_with_a_files_blocks(kind: str) -> None:
    blocks, numbers = matrix_of(kind)
    groups = Groups.of_blocks(blocks)
    assert groups is not None
    rows = noise(4, numbers.shape[1])
    found = torch.from_numpy(GroupedMatrix(groups).times(rows.numpy()))
    expected = rows @ numbers.T
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()
