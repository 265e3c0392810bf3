"""Compiled kernels between the products of a decoder layer, in float32.

Each row of a result is computed by the same instructions in the same order whatever the other rows are, so that its
bits do not depend on them. Numba compiles the kernels for the present processor at the first call and caches them.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)
LOWEST: Final = np.float32(-3e38)


def compiled(kernel: Kernel) -> Kernel:
    """Compile a function. Sums may be vectorised, in an order that depends on their length alone."""
    found: Kernel = njit(fastmath=True, nogil=True, cache=True, error_model="numpy")(kernel)
    return found


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
def add_norm(x: Floats, added: Floats, weight: Floats, eps: np.float32, normed: Floats) -> None:
    """Add `added` to `x`, both [rows, width], and write its RMS norm (arXiv 1910.07467) to `normed`."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = ZERO
        for i in range(width):
            value = x[row, i] + added[row, i]
            x[row, i] = value
            total += value * value
        factor = ONE / np.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            normed[row, i] = x[row, i] * factor * weight[i]


@compiled
def gate(gate_and_up: Floats, gated: Floats) -> None:
    """Write SiLU(gate) * up (arXiv 2002.05202) of rows [rows, 2 * width] to `gated` [rows, width]."""
    width = gated.shape[1]
    for row in range(gated.shape[0]):
        for i in range(width):
            value = gate_and_up[row, i]
            e = exponential(-abs(value))
            share = (ONE if value > ZERO else e) / (ONE + e)
            gated[row, i] = value * share * gate_and_up[row, width + i]


@compiled
def norm_heads(heads: Floats, first: int, last: int, weight: Floats, eps: np.float32) -> None:
    """Normalise the heads from `first` to `last` of `heads` [rows, heads, width] in place, each by itself."""
    width = heads.shape[2]
    for row in range(heads.shape[0]):
        for head in range(first, last):
            total = ZERO
            for i in range(width):
                total += heads[row, head, i] * heads[row, head, i]
            factor = ONE / np.sqrt(total / np.float32(width) + eps)
            for i in range(width):
                heads[row, head, i] = heads[row, head, i] * factor * weight[i]


@compiled
def rotate_and_store(
    heads: Floats, cos: Floats, sin: Floats, slots: Integers, keys: Floats, values: Floats
) -> None:
    """Rotate queries and keys (arXiv 2104.09864) in place, and write keys and values to their slots.

    `heads` [tokens, query heads + 2 * key heads, width] are queries, keys and values; `cos` and `sin` are
    [tokens, width].
    """
    key_heads, width = keys.shape[1], heads.shape[2]
    half, rotated = width // 2, heads.shape[1] - key_heads
    for token in range(len(slots)):
        for head in range(rotated):
            for i in range(half):
                low, high = heads[token, head, i], heads[token, head, i + half]
                heads[token, head, i] = low * cos[token, i] - high * sin[token, i]
                heads[token, head, i + half] = high * cos[token, i + half] + low * sin[token, i + half]
        slot = slots[token]
        for head in range(key_heads):
            for i in range(width):
                keys[slot, head, i] = heads[token, rotated - key_heads + head, i]
                values[slot, head, i] = heads[token, rotated + head, i]


@compiled
def attend(  # noqa: C901  # one loop nest, without calls
    heads: Floats,
    keys: Floats,
    values: Floats,
    paths: Integers,
    first: Integers,
    count: Integers,
    scale: np.float32,
    output: Floats,
) -> None:
    """Write the attention of tokens to `output` [tokens, query heads, width].

    Token t attends from its queries, the first heads of `heads` [tokens, any, width], to the keys and values
    [slots, key heads, width] in the slots `paths[first[t] : first[t] + count[t]]`, in this order.
    """
    tokens, key_heads, width = len(first), keys.shape[1], keys.shape[2]
    group = output.shape[1] // key_heads
    most = 0
    for token in range(tokens):
        most = max(most, count[token])
    scores = np.empty((group, most), np.float32)
    for token in range(tokens):
        number = count[token]
        path = paths[first[token] : first[token] + number]
        for key_head in range(key_heads):
            begin = key_head * group
            for j in range(number):
                slot = path[j]
                for row in range(group):
                    total = ZERO
                    for i in range(width):
                        total += heads[token, begin + row, i] * keys[slot, key_head, i]
                    scores[row, j] = total * scale
            for row in range(group):
                highest = LOWEST
                for j in range(number):
                    highest = max(highest, scores[row, j])
                total = ZERO
                for j in range(number):
                    weight = exponential(scores[row, j] - highest)
                    scores[row, j] = weight
                    total += weight
                for j in range(number):
                    scores[row, j] = scores[row, j] / total
                for i in range(width):
                    output[token, begin + row, i] = ZERO
            for j in range(number):
                slot = path[j]
                for row in range(group):
                    weight = scores[row, j]
                    for i in range(width):
                        output[token, begin + row, i] += weight * values[slot, key_head, i]
