"""The compiled kernels compute what PyTorch does, each row by itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cosine_node.engine.kernels import (
    LANES,
    Floats,
    add_norm,
    attend,
    exponential,
    gate,
    norm_heads,
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


def test_norm_and_gate() -> None:
    x, added, weight = noise(5, 72), noise(5, 72, seed=1), noise(72, seed=2)
    total, normed = x.copy(), np.empty_like(x)
    add_norm(total, added, weight, EPS, normed)
    assert (total == x + added).all()
    expected = F.rms_norm(torch.from_numpy(x + added), (72,), torch.from_numpy(weight), float(EPS))
    torch.testing.assert_close(torch.from_numpy(normed), expected)
    gated = np.empty((5, 36), np.float32)
    gate(30 * x, gated)
    left, up = torch.from_numpy(30 * x).chunk(2, 1)
    torch.testing.assert_close(torch.from_numpy(gated), F.silu(left) * up)


def test_some_heads_are_normalised() -> None:
    heads, weight = noise(3, 6, 16), noise(16, seed=1)
    found = heads.copy()
    norm_heads(found, 1, 4, weight, EPS)
    expected = F.rms_norm(torch.from_numpy(heads[:, 1:4]), (16,), torch.from_numpy(weight), float(EPS))
    torch.testing.assert_close(torch.from_numpy(found[:, 1:4]), expected)
    assert (found[:, [0, 4, 5]] == heads[:, [0, 4, 5]]).all()


def test_queries_and_keys_are_rotated_and_keys_and_values_stored() -> None:
    heads, cos, sin = noise(2, 8, 16), noise(2, 16, seed=1), noise(2, 16, seed=2)
    keys, values = np.zeros((2, 2, 16, LANES), np.float32), np.zeros((32, 2, 16), np.float32)
    found = heads.copy()
    rotate_and_store(found, cos, sin, np.array([17, 3]), keys, values)
    swapped = np.concatenate([-heads[..., 8:], heads[..., :8]], -1)
    expected = heads * cos[:, None] + swapped * sin[:, None]
    np.testing.assert_allclose(found[:, :6], expected[:, :6], rtol=1e-5, atol=1e-6)
    assert (by_slot(keys)[[17, 3]] == found[:, 4:6]).all() and (values[[17, 3]] == heads[:, 6:]).all()
    assert np.count_nonzero(keys) == 2 * 2 * 16


@pytest.mark.parametrize("width", [6, 16, 64, 80])
def test_attention_is_that_of_pytorch_and_depends_on_the_path_alone(width: int) -> None:
    key_heads, group, pages = 2, 3, 20
    slots = pages * LANES
    heads, turned, values = (
        noise(60, 10, width),
        noise(pages, 2, width, LANES, seed=1),
        noise(slots, 2, width, seed=2),
    )
    keys = by_slot(turned)
    drawn = np.random.default_rng(3)
    # A path over whole pages and single slots, shared by many tokens, then paths of their own.
    paths = np.concatenate(
        [np.arange(32, 96), drawn.permutation(32), np.arange(112, 260), drawn.permutation(slots)]
    )
    first = np.array([0] * 40 + [0, 5, 5, 244] * 5)
    count = np.concatenate([np.arange(195, 235), drawn.integers(1, 230, 20)])
    output = np.empty((60, key_heads * group, width), np.float32)
    attend(heads, turned, values, paths, first, count, np.float32(0.3), output)
    moved = np.concatenate([np.zeros(7, np.int64), paths])
    for token in range(60):
        path = paths[first[token] : first[token] + count[token]]
        queries = torch.from_numpy(heads[token, : key_heads * group])[:, None]
        seen, taken = (
            torch.from_numpy(each[path]).transpose(0, 1).repeat_interleave(group, 0) for each in (keys, values)
        )
        expected = F.scaled_dot_product_attention(queries, seen, taken, scale=0.3)[:, 0]
        torch.testing.assert_close(torch.from_numpy(output[token]), expected, rtol=1e-4, atol=1e-5)
        alone = np.empty((1, key_heads * group, width), np.float32)
        one = slice(token, token + 1)
        attend(heads[one], turned, values, moved, first[one] + 7, count[one], np.float32(0.3), alone)
        assert (alone[0] == output[token]).all()
