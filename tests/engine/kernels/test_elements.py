"""Norms, gates and rotations are what PyTorch computes, whatever the shares of the threads are."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cosine_engine.kernels.compilation import Floats
from cosine_engine.kernels.crew import Thread
from cosine_engine.kernels.elements import (
    GELU,
    PAGE,
    SILU,
    add_norm,
    exponential,
    gate,
    norm,
    norm_head,
    rotate_and_store,
)

EPS = np.float32(1e-5)


def by_slot(keys: Floats) -> Floats:
    """Return keys [pages, heads, width, lanes] as [slots, heads, width]."""
    return keys.transpose(0, 3, 1, 2).reshape(-1, *keys.shape[1:3])


def noise(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_exponential_is_right_to_the_last_bits() -> None:
    x = -np.logspace(-8, 2, 1001).astype(np.float32)
    found = np.array([exponential(each) for each in x])
    assert exponential(np.float32(0)) == 1
    expected = np.exp(np.maximum(x, -87).astype(np.float64))
    assert (np.abs(found - expected) <= 2e-7 * expected).all()


@pytest.mark.parametrize("columns", [[(0, 72)], [(0, 32), (32, 72)]])
def test_norm(columns: list[tuple[int, int]]) -> None:
    x, added, weight = noise(5, 72), noise(5, 72, seed=1), noise(72, seed=2)
    total, normed = np.empty_like(x), np.empty_like(x)
    for first, last in columns:
        add_norm(x, added, weight, EPS, total, normed, first, last)
    assert (total == x + added).all()
    expected = F.rms_norm(torch.from_numpy(x + added), (72,), torch.from_numpy(weight), float(EPS))
    torch.testing.assert_close(torch.from_numpy(normed), expected)
    for first, last in columns:
        norm(total, weight, EPS, normed, first, last)
    torch.testing.assert_close(torch.from_numpy(normed), expected)


@pytest.mark.parametrize(
    ("steepness", "activation"), [(SILU, F.silu), (GELU, partial(F.gelu, approximate="tanh"))], ids=["silu", "gelu"]
)
def test_gate(steepness: tuple[np.float32, np.float32], activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    left, up, gated = 30 * noise(5, 36), noise(5, 36, seed=1), np.empty((5, 36), np.float32)
    for first, last in ((0, 32), (32, 36)):
        gate(left, up, steepness, gated, first, last)
    expected = activation(torch.from_numpy(left)) * torch.from_numpy(up)
    torch.testing.assert_close(torch.from_numpy(gated), expected)


def test_a_head_is_normalised() -> None:
    head, weight = noise(16), noise(16, seed=1)
    expected = F.rms_norm(torch.from_numpy(head), (16,), torch.from_numpy(weight), float(EPS))
    found = head.copy()
    norm_head(found, weight, EPS)
    torch.testing.assert_close(torch.from_numpy(found), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_queries_and_keys_are_rotated_and_keys_and_values_stored(threads: int) -> None:
    heads, cos, sin = noise(2, 8, 16), noise(2, 16, seed=1), noise(2, 16, seed=2)
    keys, values = np.zeros((2, 2, 16, PAGE), np.float32), np.zeros((32, 2, 16), np.float32)
    found = heads.copy()
    for thread in range(threads):
        rotate_and_store(found, np.stack([cos, sin]), np.array([17, 3]), keys, values, Thread(thread, threads, 0))
    swapped = np.concatenate([-heads[..., 8:], heads[..., :8]], -1)
    expected = heads * cos[:, None] + swapped * sin[:, None]
    np.testing.assert_allclose(found[:, :6], expected[:, :6], rtol=1e-5, atol=1e-6)
    assert (by_slot(keys)[[17, 3]] == found[:, 4:6]).all() and (values[[17, 3]] == heads[:, 6:]).all()
    assert np.count_nonzero(keys) == 2 * 2 * 16
