"""Products in all formats and by the instructions of all processors: those of the rounded numbers, row by row."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from cosine_engine.kernels.products import FIRST_SCALED, inputs_of, round_inputs
from cosine_engine.kernels.tiles import (
    FORMATS,
    LANES,
    MOST_ROWS,
    WAY,
    WAYS,
    Format,
    Tile,
    call_tile,
    processor_features,
    tile,
    tile_by,
)

WIDTH = 96


def test_inputs_are_rounded_to_eight_bits_by_groups() -> None:
    rows = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    rows[1, 32:64] = 0
    given = inputs_of(3, WIDTH)
    given.rows[:] = rows.reshape(-1)
    for first, last in ((0, 2), (2, 3)):
        round_inputs(given, 3, WIDTH, first, last)
    groups = rows.reshape(-1, 32).astype(np.float64)
    scales = np.abs(groups).max(1, keepdims=True) / 127
    numbers = np.rint(np.divide(groups, scales, where=scales > 0, out=np.zeros_like(groups)))
    assert (given.numbers.reshape(-1, 32) == numbers).all()
    np.testing.assert_allclose(given.scales, scales[:, 0], rtol=1e-6)
    assert (given.sums.reshape(-1, 2) == numbers.reshape(-1, 2, 16).sum(2)).all()
    np.testing.assert_allclose(given.lows, scales[:, 0] * numbers.sum(1), rtol=1e-6)


def compiled_by(way: int) -> Any:
    """Return products by one of `WAYS`.

    The processor's own is that of `tile`. Of another one only what depends on it is compiled, which takes seconds:
    formats with scales, of the fewest and of the most rows.
    """
    own, address = way == WAY, tile()

    def run(form: int, rows: int, weights: Any, given: Any, output: Any, stride: int) -> None:
        inputs = given.rows.ctypes.data if form < FIRST_SCALED else given.numbers.ctypes.data
        scales, sums, lows = given.scales.ctypes.data, given.sums.ctypes.data, given.lows.ctypes.data
        first, place = weights.ctypes.data, output.ctypes.data
        given_tile = Tile(first, inputs, scales, sums, lows, WIDTH, place, stride)
        if own:
            call_tile(address, form, rows, np.float32(0.5), given_tile)
        elif form >= FIRST_SCALED and (rows == 1 or rows == MOST_ROWS):
            tile_by(way, form, rows, np.float32(0.5), given_tile)

    return njit(run)


def column(form: Format, numbers: Any, scales: Any, least: Any) -> Any:
    """Lay out numbers [LANES, WIDTH] and scales [LANES, groups] byte by byte as the module says."""
    memory = np.zeros((WIDTH // form.group, form.group_bytes), np.uint8)
    for group, found in enumerate(memory):
        mine = numbers[:, group * form.group : (group + 1) * form.group]
        for lane in range(LANES):
            for i in range(form.group):
                four, rest = divmod(i, 4)
                if form.bits == 8:
                    found[four * 64 + lane * 4 + rest] = mine[lane, i]
                elif form.bits == 4:
                    found[four // 2 * 64 + lane * 4 + rest] |= int(mine[lane, i]) << 4 * (four % 2)
                else:
                    found.view(f"f{form.bits // 8}")[i * LANES + lane] = mine[lane, i]
        if form.has_scales:
            halves = found[form.bits * form.group * LANES // 8 :].view(np.float16)
            halves[:LANES] = scales[:, group]
            halves[LANES:] = least[:, group] if form.has_least else []
    return memory.reshape(-1)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=lambda way: WAYS[way][1].__name__.strip("_"))
def test_products_of_every_format_on_every_processor(way: int) -> None:
    if not WAYS[way][0] <= processor_features():
        pytest.skip("This processor has no such instructions.")
    run, drawn = compiled_by(way), np.random.default_rng(1)
    given = inputs_of(MOST_ROWS, WIDTH)
    given.rows[:] = drawn.standard_normal(MOST_ROWS * WIDTH)
    # The largest numbers have the largest sums.
    given.rows[:WIDTH] = np.where(drawn.random(WIDTH) < 0.9, 1, -1)
    round_inputs(given, MOST_ROWS, WIDTH, 0, WIDTH // 32)
    rounded = given.numbers.reshape(-1, 32).astype(np.float64) * given.scales[:, None]
    for form in range(0 if way == WAY else FIRST_SCALED, len(FORMATS)):
        chosen = FORMATS[form]
        groups = WIDTH // chosen.group
        numbers: Any = drawn.integers(0, 1 << min(chosen.bits, 8), (LANES, WIDTH))
        numbers[0] = (1 << min(chosen.bits, 8)) - 1
        scales = drawn.standard_normal((LANES, groups)).astype(np.float16)
        least = drawn.standard_normal((LANES, groups)).astype(np.float16)
        weights = column(chosen, numbers, scales, least)
        centre = 0 if chosen.has_least or not chosen.has_scales else 1 << chosen.bits - 1
        by_group = (numbers - centre).reshape(LANES, groups, -1) * (
            scales[..., None].astype(float) if chosen.has_scales else 1
        )
        by_group = by_group + (least[..., None].astype(float) if chosen.has_least else 0)
        inputs = rounded if chosen.has_scales else given.rows.astype(np.float64)
        expected = 0.5 * inputs.reshape(MOST_ROWS, WIDTH) @ by_group.reshape(LANES, WIDTH).T
        found = np.full((MOST_ROWS, LANES + 3), np.nan, np.float32)
        run(form, MOST_ROWS, weights, given, found.reshape(-1), LANES + 3)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found[:, :LANES], expected, rtol=1e-5, atol=1e-6 * scale)
        assert np.isnan(found[:, LANES:]).all()
        for rows in range(1, MOST_ROWS if way == WAY else 2):
            fewer = np.empty((rows, LANES), np.float32)
            run(form, rows, weights, given, fewer.reshape(-1), LANES)
            assert (fewer == found[:rows, :LANES]).all()


def test_the_fastest_way_is_taken() -> None:
    assert WAYS[WAY][0] <= processor_features()
    assert not any(needed <= processor_features() for needed, _ in WAYS[:WAY])
