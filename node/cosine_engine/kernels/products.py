"""Products of rows with stored matrices, for a thread's share of the outputs.

A matrix is a table [parts, 5] of int64: outputs, the number of the format in `tiles.FORMATS`, the address of the
weights, that of the bias or 0, and the binary logarithm of the factor by which all scales were multiplied. The
outputs of the parts are adjacent.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cosine_engine.kernels.compilation import ONE, ZERO, Floats, Integers, compiled, floats_at
from cosine_engine.kernels.crew import COLUMNS, Thread, columns_of, meet
from cosine_engine.kernels.tiles import FORMATS, LANES, MOST_ROWS, Tile, call_tile, tile_rows

GROUP: Final = COLUMNS
"""Inputs that are rounded with one scale, as are the weights of a group in most formats."""
ROWS_AT_ONCE: Final = 64
"""Rows that share the reading of weights. Their inputs stay in the L2 cache."""
FIRST_SCALED: Final = np.int64([form.has_scales for form in FORMATS].index(True))
"""The number of the first format with scales, whose inputs are rounded."""
MOST: Final = np.float32(127)
TINY: Final = np.float32(1e-30)
GROUP_BYTES: Final = np.array([form.group_bytes for form in FORMATS])
GROUP_INPUTS: Final = np.array([form.group for form in FORMATS])
TILE_ROWS: Final = np.array([tile_rows(form) for form in FORMATS])


class Inputs(NamedTuple):
    """Rows of inputs: `rows` [rows, any] in float32, and rounded to eight bits by groups of `GROUP`.

    The inputs are the first ones of these arrays, which are as wide as the widest of a pass.
    """

    rows: Floats
    numbers: npt.NDArray[np.int8]
    scales: Floats
    sums: npt.NDArray[np.int32]
    """The sum of 16 numbers each."""
    lows: Floats
    """The scale times the sum of a group."""
    rest: Floats
    """Room for the outputs of a tile [threads, rows, `LANES`], where a matrix has less."""


def inputs_of(rows: int, width: int, threads: int = 1) -> Inputs:
    """Return room for rows of at most `width` inputs."""
    groups = -(-width // GROUP)
    return Inputs(
        np.empty(rows * width, np.float32),
        np.empty(rows * width, np.int8),
        np.empty(rows * groups, np.float32),
        np.empty(rows * groups * 2, np.int32),
        np.empty(rows * groups, np.float32),
        np.empty((threads, MOST_ROWS, LANES), np.float32),
    )


@compiled
def round_inputs(given: Inputs, rows: int, width: int, first: int, last: int) -> None:
    """Round the groups from `first` to `last` of all rows."""
    groups = last - first
    for row in range(rows):
        start = row * (width // GROUP) + first
        values = given.rows[start * GROUP : (start + groups) * GROUP]
        numbers = given.numbers[start * GROUP : (start + groups) * GROUP]
        scales, lows = given.scales[start : start + groups], given.lows[start : start + groups]
        sums = given.sums[2 * start : 2 * (start + groups)]
        # Separate loops are vectorised.
        for group in range(groups):
            most = ZERO
            for i in range(GROUP):
                most = max(most, abs(values[group * GROUP + i]))
            scales[group] = most / MOST
        for group in range(groups):
            factor = ONE / max(scales[group], TINY)
            for i in range(GROUP):
                numbers[group * GROUP + i] = np.int8(np.int32(np.rint(values[group * GROUP + i] * factor)))
        for half in range(2 * groups):
            total = np.int32(0)
            for i in range(GROUP // 2):
                total += np.int32(numbers[half * GROUP // 2 + i])
            sums[half] = total
        for group in range(groups):
            lows[group] = scales[group] * np.float32(sums[2 * group] + sums[2 * group + 1])


@compiled
def times(
    tile: int,
    matrix: Integers,
    given: Inputs,
    rows: int,
    width: int,
    output: Floats,
    stride: int,
    thread: Thread,
) -> None:
    """Write a thread's share of the products of rows [rows, width] with a matrix to `output` [rows, stride].

    `tile` is the address of `tiles.tile`.
    """
    before, rest = 0, given.rest[thread.number]
    # Using an array costs as much as a short product. Signed, since sums of both kinds are floats.
    output_address, rest_address = np.int64(output.ctypes.data), np.int64(rest.ctypes.data)
    row_address, number_address = np.int64(given.rows.ctypes.data), np.int64(given.numbers.ctypes.data)
    scales, sums = np.int64(given.scales.ctypes.data), np.int64(given.sums.ctypes.data)
    lows = np.int64(given.lows.ctypes.data)
    for number in range(len(matrix)):
        part = matrix[number, 0], matrix[number, 1], matrix[number, 2], matrix[number, 3], matrix[number, 4]
        form, factor = part[1], np.float32(2.0 ** np.float64(-part[4]))
        column_bytes = GROUP_BYTES[form] * (width // GROUP_INPUTS[form])
        first, last = columns_of(part[0], thread)
        for start in range(0, rows, ROWS_AT_ONCE):
            end = min(rows, start + ROWS_AT_ONCE)
            for column in range(first, last, LANES):
                lanes, weights = min(LANES, part[0] - column), part[2] + column // LANES * column_bytes
                for row in range(start, end, TILE_ROWS[form]):
                    count, place = min(TILE_ROWS[form], end - row), row * stride + before + column
                    group = row * (width // GROUP)
                    inputs = number_address + row * width if form >= FIRST_SCALED else row_address + 4 * row * width
                    address = output_address + 4 * place if lanes == LANES else rest_address
                    apart = stride if lanes == LANES else LANES
                    of_rows = inputs, scales + 4 * group, sums + 8 * group, lows + 4 * group
                    call_tile(tile, form, count, factor, Tile(weights, *of_rows, width, address, apart))
                    if lanes < LANES:
                        _keep(rest, output, place, stride, count, lanes)
                    if part[3]:
                        bias = floats_at(part[3], (part[0],))[column : column + lanes]
                        _add_bias(bias, output, place, stride, count)
        before += part[0]


@compiled
def _keep(rest: Floats, output: Floats, place: int, stride: int, rows: int, lanes: int) -> None:
    """Copy the first columns of `rest` to `output` from `place` on."""
    for row in range(rows):
        for lane in range(lanes):
            output[place + row * stride + lane] = rest[row, lane]


@compiled
def _add_bias(bias: Floats, output: Floats, place: int, stride: int, rows: int) -> None:
    """Add the bias of some outputs to `output` from `place` on."""
    for row in range(rows):
        for lane in range(len(bias)):
            output[place + row * stride + lane] += bias[lane]


@compiled
def multiply(
    tile: int, matrix: Integers, given: Inputs, rows: int, width: int, output: Floats, thread: Thread
) -> None:
    """Write the products of rows [rows, width] with a matrix of one part to `output` [rows, outputs]."""
    if matrix[0, 1] >= FIRST_SCALED:
        first, last = columns_of(width, thread)
        round_inputs(given, rows, width, first // GROUP, last // GROUP)
        meet(thread)
    times(tile, matrix, given, rows, width, output, matrix[0, 0], thread)
    meet(thread)
