"""Attention of tokens along their paths, for a share of the heads."""

from typing import Final

import numpy as np

from cosine_engine.kernels.compilation import ZERO, Floats, Integers, compiled, inlined, shaped
from cosine_engine.kernels.crew import Thread, share
from cosine_engine.kernels.elements import PAGE, exponential
from cosine_engine.kernels.tiles import LANES, MOST_ROWS, add_tile

LOWEST: Final = np.float32(-3e38)
BLOCK: Final = 64
"""Values of a head that are read at once, and stay in the L1 cache (16 KiB at a width of 64)."""
TOGETHER: Final = 16
"""Maximum number of tokens of one path that share the reading of keys and values."""


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
def run_from(path: Integers, start: int, most: int) -> int:
    """Return the number of adjacent slots of a path from `start` on, at most `most`."""
    end = min(len(path), start + most)
    run = 1
    while start + run < end and path[start + run] == path[start] + run:
        run += 1
    return run


@compiled
def longest_of(counts: Integers) -> int:
    """Return the largest of some numbers."""
    longest = 0
    for count in counts:
        longest = max(longest, count)
    return longest


@compiled
def score(queries: Floats, keys: Floats, head: int, path: Integers, room: Floats, scores: Floats) -> None:
    """Write the products of queries [rows, width] with the keys in the slots `path` to `scores` [rows, slots]."""
    (rows, width), start = queries.shape, 0
    key_address = keys.ctypes.data + 4 * head * width * PAGE
    page_bytes = 4 * keys.shape[1] * width * PAGE
    query_address, room_address = queries.ctypes.data, room.ctypes.data
    while start < len(path):
        page, lane = path[start] // PAGE, path[start] % PAGE
        run = run_from(path, start, PAGE - lane)
        for first in range(0, rows, MOST_ROWS):
            count = min(MOST_ROWS, rows - first)
            room[:] = ZERO
            address = key_address + page * page_bytes
            inputs = query_address + 4 * first * width
            add_tile(count, address, PAGE, width, inputs, width, room_address, LANES)
            for row in range(count):
                for j in range(run):
                    scores[first + row, start + j] = room[row, lane + j]
        start += run


@compiled
def add_values(weights: Floats, values: Floats, head: int, path: Integers, output: Floats) -> None:
    """Add the values of a head in the slots `path` to `output` [rows, width] by their weights [rows, slots]."""
    (rows, width), start = output.shape, 0
    whole, apart, slots = width // LANES * LANES, values.shape[1] * width, weights.shape[1]
    value_address = values.ctypes.data + 4 * head * width
    weight_address, output_address = weights.ctypes.data, output.ctypes.data
    while start < len(path):
        run = run_from(path, start, BLOCK)
        for first in range(0, rows, MOST_ROWS):
            count = min(MOST_ROWS, rows - first)
            inputs = weight_address + 4 * (first * slots + start)
            for column in range(0, whole, LANES):
                address = value_address + 4 * (path[start] * apart + column)
                outputs = output_address + 4 * (first * width + column)
                add_tile(count, address, apart, run, inputs, slots, outputs, width)
        for row in range(rows):
            for j in range(start, start + run):
                for i in range(whole, width):
                    output[row, i] += weights[row, j] * values[path[j], head, i]
        start += run


@compiled
def attend(
    heads: Floats,
    keys: Floats,
    values: Floats,
    paths: tuple[Integers, Integers, Integers],
    scale: np.float32,
    room: tuple[Floats, Floats, Floats],
    output: Floats,
    thread: Thread,
) -> None:
    """Write the attention of a thread's share of the heads to `output` [tokens, query heads, width].

    `paths` are slots, `first` and `count`: token t attends from its queries, the first heads of `heads`
    [tokens, any, width], to the keys and values of `rotate_and_store` in `count[t]` slots from `first[t]` on, in
    this order. Tokens on one path take keys and values in turns, which are then read from memory once. `room` is a
    thread's `attention_room`.
    """
    slots, first, count = paths
    group, width = output.shape[1] // values.shape[1], values.shape[2]
    queries, attended, of_page = room[0][0], room[0][1], room[2]
    start = 0
    while start < len(first):
        end = start + 1
        while end < min(len(first), start + TOGETHER) and first[end] == first[start]:
            end += 1
        path = slots[first[start] : first[start] + longest_of(count[start:end])]
        rows = (end - start) * group
        scores = shaped(room[1], (rows, len(path)))
        mine, others = share(rows * values.shape[1], thread)
        for head in range(values.shape[1]):
            low, high = max(0, mine - head * rows), min(rows, others - head * rows)
            if low >= high:
                continue
            for row in range(low, high):
                for i in range(width):
                    queries[row, i] = heads[start + row // group, head * group + row % group, i] * scale
            score(queries[low:high], keys, head, path, of_page, scores[low:high])
            for row in range(low, high):
                seen = count[start + row // group]
                weigh(scores[row, :seen])
                scores[row, seen:] = ZERO
            attended[low:high] = ZERO
            add_values(scores[low:high], values, head, path, attended[low:high])
            for row in range(low, high):
                for i in range(width):
                    output[start + row // group, head * group + row % group, i] = attended[row, i]
        start = end


def attention_room(threads: int, group: int, width: int, tokens: int) -> tuple[Floats, Floats, Floats]:
    """Return room for threads: queries and outputs of `group` heads, scores of `tokens` tokens, and of a page."""
    rows = TOGETHER * group
    return (
        np.empty((threads, 2, rows, width), np.float32),
        np.empty((threads, rows * tokens), np.float32),
        np.empty((threads, MOST_ROWS, LANES), np.float32),
    )
