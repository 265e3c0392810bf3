"""Compiled kernels between the products of a decoder layer, in float32.

Each row of a result is computed by the same instructions in the same order whatever the other rows are, so that its
bits do not depend on them. Numba compiles the kernels for the present processor at the first call and caches them.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from cosine_node.engine.kv_pool import PAGE_TOKENS

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)
LOWEST: Final = np.float32(-3e38)
LANES: Final = PAGE_TOKENS
"""Slots whose keys are adjacent, element by element, so that products with them are vectorised without sums."""
BLOCK: Final = 64
"""Keys or values of a head that are read at once, and stay in the L1 cache (16 KiB at a width of 64)."""
TOGETHER: Final = 16
"""Maximum number of tokens of one path that share the reading of blocks."""


def compiled(kernel: Kernel) -> Kernel:
    """Compile a function. Sums may be vectorised, in an order that depends on their length alone."""
    found: Kernel = njit(fastmath=True, nogil=True, cache=True, error_model="numpy")(kernel)
    return found


def inlined(kernel: Kernel) -> Kernel:
    """Compile a function as a part of its callers: calls with arrays are slow."""
    found: Kernel = njit(fastmath=True, nogil=True, error_model="numpy", inline="always")(kernel)
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
    [tokens, width]. Keys are stored turned, [slots / `LANES`, key heads, width, `LANES`], and values as
    [slots, key heads, width].
    """
    key_heads, width = values.shape[1], heads.shape[2]
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
                keys[slot // LANES, head, i, slot % LANES] = heads[token, rotated - key_heads + head, i]
                values[slot, head, i] = heads[token, rotated + head, i]


@inlined
def turned_keys(keys: Floats, path: Integers, head: int, turned: Floats) -> None:
    """Copy the keys of a head in the slots `path` to `turned` [width, at least slots]."""
    width, j = keys.shape[2], 0
    while j < len(path):
        page, lane = path[j] // LANES, path[j] % LANES
        run = 1
        while lane == 0 and run < LANES and j + run < len(path) and path[j + run] == path[j] + run:
            run += 1
        if run == LANES:
            for i in range(width):
                for each in range(LANES):
                    turned[i, j + each] = keys[page, head, i, each]
        else:
            run = 1
            for i in range(width):
                turned[i, j] = keys[page, head, i, lane]
        j += run


@inlined
def weigh(scores: Floats) -> None:
    """Replace scores by their softmax."""
    highest, total = LOWEST, ZERO
    for j in range(len(scores)):
        highest = max(highest, scores[j])
    for j in range(len(scores)):
        scores[j] = exponential(scores[j] - highest)
        total += scores[j]
    for j in range(len(scores)):
        scores[j] = scores[j] / total


@inlined
def add_scores(query: Floats, turned: Floats, scores: Floats) -> None:
    """Write the products of a query [width] with keys [width, `BLOCK`] to `scores` [`BLOCK`]."""
    fours = len(query) // 4 * 4
    for j in range(BLOCK):
        scores[j] = ZERO
    for i in range(0, fours, 4):
        a, b, c, d = query[i], query[i + 1], query[i + 2], query[i + 3]
        for j in range(BLOCK):
            scores[j] += a * turned[i, j] + b * turned[i + 1, j] + c * turned[i + 2, j] + d * turned[i + 3, j]
    for i in range(fours, len(query)):
        for j in range(BLOCK):
            scores[j] += query[i] * turned[i, j]


@inlined
def add_values(weights: Floats, values: Floats, path: Integers, head: int, output: Floats) -> None:
    """Add the values of a head in the slots `path` to `output` [width] by their weights."""
    width, fours = len(output), len(weights) // 4 * 4
    for j in range(0, fours, 4):
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        k, m, n, o = path[j], path[j + 1], path[j + 2], path[j + 3]
        for i in range(width):
            first_two = a * values[k, head, i] + b * values[m, head, i]
            output[i] += first_two + c * values[n, head, i] + d * values[o, head, i]
    for j in range(fours, len(weights)):
        for i in range(width):
            output[i] += weights[j] * values[path[j], head, i]


@inlined
def attend_from(
    queries: Floats,
    counts: Integers,
    keys: Floats,
    values: Floats,
    path: Integers,
    head: int,
    room: tuple[Floats, Floats],
    output: Floats,
) -> None:
    """Write the attention of queries, scaled before, to `output`, both [rows, width].

    Row r attends to the keys and values of a head in the first `counts[r]` slots of a path. `room` is for scores
    [rows, slots to whole blocks], and for keys [width, `BLOCK`].
    """
    (scores, turned), (rows, width) = room, queries.shape
    for block in range(0, len(path), BLOCK):
        turned_keys(keys, path[block : block + BLOCK], head, turned)
        for row in range(rows):
            if block < counts[row]:
                add_scores(queries[row], turned, scores[row, block : block + BLOCK])
    for row in range(rows):
        weigh(scores[row, : counts[row]])
        for i in range(width):
            output[row, i] = ZERO
    for block in range(0, len(path), BLOCK):
        for row in range(rows):
            last = min(block + BLOCK, counts[row])
            if block < last:
                add_values(scores[row, block:last], values, path[block:last], head, output[row])


@compiled
def attend(
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

    Token t attends from its queries, the first heads of `heads` [tokens, any, width], to the keys and values of
    `rotate_and_store` in the slots `paths[first[t] : first[t] + count[t]]`, in this order. Tokens on one path take
    a block of keys or values in turns, which is then read from memory once.
    """
    group, width = output.shape[1] // values.shape[1], values.shape[2]
    queries, attended = np.empty((2, TOGETHER * group, width), np.float32)
    counts = np.empty(TOGETHER * group, np.int64)
    scores = np.empty((TOGETHER * group, (np.max(count) + BLOCK - 1) // BLOCK * BLOCK), np.float32)
    room = scores, np.zeros((width, BLOCK), np.float32)
    start = 0
    while start < len(first):
        end = start + 1
        while end < min(len(first), start + TOGETHER) and first[end] == first[start]:
            end += 1
        path = paths[first[start] : first[start] + np.max(count[start:end])]
        rows = (end - start) * group
        for head in range(values.shape[1]):
            for row in range(rows):
                token = start + row // group
                counts[row] = count[token]
                for i in range(width):
                    queries[row, i] = heads[token, head * group + row % group, i] * scale
            attend_from(queries[:rows], counts[:rows], keys, values, path, head, room, attended[:rows])
            for row in range(rows):
                for i in range(width):
                    output[start + row // group, head * group + row % group, i] = attended[row, i]
        start = end
