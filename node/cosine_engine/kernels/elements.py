"""Norms, gates and rotations: what a decoder computes element by element, for a share of the elements."""

from typing import Final

import numpy as np

from cosine_engine.kernels.compilation import ONE, ZERO, Floats, Integers, compiled
from cosine_engine.kernels.crew import Thread, share
from cosine_engine.kv_pool import PAGE_TOKENS

PAGE: Final = PAGE_TOKENS
"""Slots whose keys are adjacent, element by element, so that products with them are vectorised without sums."""

SILU: Final = (np.float32(1), np.float32(0))
GELU: Final = (np.float32(2 * (2 / np.pi) ** 0.5), np.float32(2 * (2 / np.pi) ** 0.5 * 0.044715))
"""The approximation of GELU by tanh (arXiv 1606.08415)."""


@compiled
def exponential(x: np.float32) -> np.float32:
    """Return e to the power of `x` <= 0, with a relative error of 1e-7. Unlike the C library's, it vectorises.

    The polynomial is that of Cephes (netlib.org/cephes, `expf`).
    """
    x = max(x, np.float32(-87))
    power = np.floor(x * np.float32(1.44269504088896341) + np.float32(0.5))
    # The logarithm of 2 in two parts, so that the difference is exact.
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    found = np.float32(1.9875691500e-4) * rest + np.float32(1.3981999507e-3)
    found = found * rest + np.float32(8.3334519073e-3)
    found = found * rest + np.float32(4.1665795894e-2)
    found = found * rest + np.float32(1.6666665459e-1)
    found = found * rest + np.float32(5.0000001201e-1)
    factor = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32((found * rest * rest + rest + ONE) * factor)


@compiled
def add_norm(
    x: Floats, added: Floats, weight: Floats, eps: np.float32, total: Floats, normed: Floats, first: int, last: int
) -> None:
    """Write the columns from `first` to `last` of x + added [rows, width] to `total`, and of its norm to `normed`.

    The norm is the root mean square's (arXiv 1910.07467).
    """
    for row in range(len(x)):
        squares = ZERO
        for i in range(x.shape[1]):
            value = x[row, i] + added[row, i]
            squares += value * value
        factor = ONE / np.sqrt(squares / np.float32(x.shape[1]) + eps)
        left, right, weights = x[row, first:last], added[row, first:last], weight[first:last]
        sums, results = total[row, first:last], normed[row, first:last]
        for i in range(last - first):
            sums[i] = left[i] + right[i]
            results[i] = sums[i] * factor * weights[i]


@compiled
def norm(x: Floats, weight: Floats, eps: np.float32, normed: Floats, first: int, last: int) -> None:
    """Write the columns from `first` to `last` of the norm of x [rows, width] to `normed`."""
    for row in range(len(x)):
        squares = ZERO
        for i in range(x.shape[1]):
            squares += x[row, i] * x[row, i]
        factor = ONE / np.sqrt(squares / np.float32(x.shape[1]) + eps)
        for i in range(first, last):
            normed[row, i] = x[row, i] * factor * weight[i]


@compiled
def add(x: Floats, added: Floats, total: Floats, first: int, last: int) -> None:
    """Write the columns from `first` to `last` of x + added to `total`, all [rows, width]."""
    for row in range(len(x)):
        for i in range(first, last):
            total[row, i] = x[row, i] + added[row, i]


@compiled
def copy(x: Floats, found: Floats, first: int, last: int) -> None:
    """Copy the columns from `first` to `last` of x to `found`, both [rows, width]."""
    for row in range(len(x)):
        for i in range(first, last):
            found[row, i] = x[row, i]


@compiled
def gate(
    gates: Floats, ups: Floats, steepness: tuple[np.float32, np.float32], gated: Floats, first: int, last: int
) -> None:
    """Write the columns from `first` to `last` of a gated unit (arXiv 2002.05202) to `gated` [rows, width].

    It is gate * sigmoid(a * gate + b * gate^3) * up, with a and b of `SILU` or `GELU`.
    """
    linear, cubic = steepness
    for row in range(len(gated)):
        left, right, results = gates[row, first:last], ups[row, first:last], gated[row, first:last]
        for i in range(last - first):
            value = left[i]
            z = value * (linear + cubic * value * value)
            e = exponential(-abs(z))
            results[i] = value * ((ONE if z > ZERO else e) / (ONE + e)) * right[i]


@compiled
def norm_head(head: Floats, weight: Floats, eps: np.float32) -> None:
    """Normalise a head [width] in place."""
    squares = ZERO
    for i in range(len(head)):
        squares += head[i] * head[i]
    factor = ONE / np.sqrt(squares / np.float32(len(head)) + eps)
    for i in range(len(head)):
        head[i] = head[i] * factor * weight[i]


@compiled
def rotate_and_store(
    heads: Floats, angles: Floats, slots: Integers, keys: Floats, values: Floats, thread: Thread
) -> None:
    """Rotate queries and keys (arXiv 2104.09864) in place, and write keys and values to their slots.

    `heads` [tokens, query heads + 2 * key heads, width] are queries, keys and values; `angles` [2, tokens, width]
    are cosines and sines. Keys are stored turned, [slots / `PAGE`, key heads, width, `PAGE`], and values as
    [slots, key heads, width].
    """
    (tokens, count, width), key_heads = heads.shape, values.shape[1]
    half, rotated = width // 2, count - key_heads
    first, last = share(tokens * count, thread)
    for unit in range(first, last):
        token, number = unit // count, unit % count
        head, slot = heads[token, number], slots[token]
        if number < rotated:
            cos, sin = angles[0, token], angles[1, token]
            for i in range(half):
                low, high = head[i], head[i + half]
                head[i] = low * cos[i] - high * sin[i]
                head[i + half] = high * cos[i + half] + low * sin[i + half]
        if number >= rotated:
            for i in range(width):
                values[slot, number - rotated, i] = head[i]
        elif number >= rotated - key_heads:
            for i in range(width):
                keys[slot // PAGE, number - rotated + key_heads, i, slot % PAGE] = head[i]
