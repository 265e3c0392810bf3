"""Keyed Gumbel noise: golden values, and statistics that a hash must pass."""

import math
import struct
from itertools import pairwise
from statistics import fmean, pvariance

import pytest

from cosine_protocol.noise import GAMMA, gumbel, mix64, noise_bits, position_key

EULER = 0.5772156649015329
SAMPLES = 20_000
WORD_BITS = 64


def _word(token: int) -> int:
    return noise_bits(seed=7, position=3, token=token)


def test_the_mixer_is_that_of_splitmix64() -> None:
    outputs = [mix64(GAMMA * count % (1 << WORD_BITS)) for count in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_golden() -> None:
    assert noise_bits(seed=0, position=0, token=0) == 0x238275BC38FCBE91
    assert noise_bits(seed=(1 << 64) - 1, position=131_071, token=(1 << 31) - 1) == 0x743EB8E0899BDC16
    assert gumbel(seed=0, position=0, token=0) == -0.6807578206062317


def test_a_token_takes_its_output_of_the_stream_that_starts_at_the_position_key() -> None:
    key = position_key(seed=7, position=3)
    assert _word(4) == mix64((key + 5 * GAMMA) % (1 << WORD_BITS))


def test_seed_position_and_token_all_matter() -> None:
    words = {
        noise_bits(seed=seed, position=position, token=token)
        for seed in range(20)
        for position in range(20)
        for token in range(20)
    }
    assert len(words) == 20**3


def test_every_bit_is_set_about_half_the_time() -> None:
    words = [_word(token) for token in range(SAMPLES)]
    for bit in range(WORD_BITS):
        assert fmean(word >> bit & 1 for word in words) == pytest.approx(0.5, abs=0.02)


def test_high_bytes_are_uniform() -> None:
    counts = [0] * 256
    for token in range(SAMPLES):
        counts[_word(token) >> 56] += 1
    expected = SAMPLES / 256
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    # 255 degrees of freedom: five standard deviations around the mean.
    assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("step", ["token", "position", "seed"])
def test_neighbours_are_uncorrelated(step: str) -> None:
    def centred(index: int) -> float:
        where = {"seed": 7, "position": 3, "token": 11}
        return noise_bits(**where | {step: index}) / (1 << WORD_BITS) - 0.5

    values = [centred(index) for index in range(SAMPLES)]
    products = [a * b for a, b in pairwise(values)]
    assert fmean(products) * 12 == pytest.approx(0.0, abs=0.03)


def test_gumbel_has_the_mean_and_variance_of_its_name() -> None:
    values = [gumbel(seed=7, position=3, token=token) for token in range(SAMPLES)]
    assert fmean(values) == pytest.approx(EULER, abs=0.03)
    assert pvariance(values) == pytest.approx(math.pi**2 / 6, abs=0.06)


def test_gumbel_is_finite_and_already_float32() -> None:
    for token in range(1000):
        value = gumbel(seed=7, position=3, token=token)
        assert math.isfinite(value)
        assert struct.unpack("<f", struct.pack("<f", value)) == (value,)
