"""Weights in groups: GGUF's blocks as they are, others rounded once; products whose rows are independent."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cosine_engine.blocks import held_matrix
from cosine_engine.blocks.groups import FOUR_BITS, Groups
from cosine_engine.blocks.held_matrix import HALF_FORMAT, HeldMatrix
from cosine_engine.blocks.matrix import SIZES
from tests.engine.blocks.test_matrix import matrix_of

BLOCK_KINDS = [kind for kind in SIZES if kind not in ("F16", "BF16")]


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


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
    lowest = 0 if groups.least is not None else -(1 << groups.bits - 1)
    assert groups.numbers.min() >= lowest and groups.numbers.max() < lowest + (1 << groups.bits)
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


def matrix(outputs: int, bits: int) -> tuple[HeldMatrix, Tensor]:
    """Return a matrix of random weights, and them."""
    groups = Groups.of_weights(noise(outputs, 192), bits)
    return HeldMatrix.of_groups(groups), values_of(groups)


BITS = pytest.mark.parametrize("bits", [4, 8])


@BITS
def test_products_round_inputs_to_eight_bits_by_groups(bits: int) -> None:
    held, weights = matrix(70, bits)
    rows = noise(9, 192)
    inputs = rows.double().view(9, -1, 32)
    step = inputs.abs().amax(2, keepdim=True) / 127
    rounded = ((inputs / step).round() * step).view(9, 192)
    found = torch.from_numpy(held.times(rows.numpy())).double()
    torch.testing.assert_close(found, rounded @ weights.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_row_has_the_same_bits_among_any_others(bits: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_matrix, "threads_for", lambda weights, most: threads)
    weights = noise(70, 192)
    held = HeldMatrix.of_weights(weights, HALF_FORMAT) if bits == 16 else matrix(70, bits)[0]
    assert held is not None
    rows = noise(80, 192).numpy()
    alone = np.concatenate([held.times(rows[i : i + 1]) for i in range(80)])
    for count in (2, 4, 5, 8, 10, 20, 40, 80):
        assert (np.concatenate([held.times(part) for part in np.split(rows, 80 // count)]) == alone).all()


@pytest.mark.parametrize("size", [1e-7, 3e-3, 1e4])
def test_scales_of_any_size_are_kept(size: float) -> None:
    # Scales of larger blocks are products of two numbers, which float16 may lack.
    scales = (noise(16, 6).abs() + 0.01).numpy() * np.float32(size)
    numbers = np.random.default_rng(0).integers(-128, 128, (16, 192)).astype(np.int16)
    groups = Groups(8, numbers, scales)
    found = HeldMatrix.of_groups(groups).numbers().double()
    torch.testing.assert_close(found, values_of(groups), rtol=6e-4, atol=0)
