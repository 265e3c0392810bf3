"""Calibrated confidence follows outcomes, whatever is claimed."""

import random

import pytest

from cosine_p2p.strategy.fusion import Calibration


def test_without_outcomes_no_claim_leaves_the_unit_interval_and_order_holds() -> None:
    calibration = Calibration()
    for is_first in (False, True):
        values = [calibration(probability / 20, is_first=is_first) for probability in range(21)]
        assert values == sorted(values)
        assert 0.0 <= values[0] <= values[-1] <= 1.0


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_many_outcomes_outweigh_the_draft_probability(probability: float, rate: float) -> None:
    rng = random.Random(f"{probability} {rate}")
    calibration = Calibration()
    for _ in range(2000):
        calibration.observe(probability, is_first=True, hit=rng.random() < rate)
    assert calibration(probability, is_first=True) == pytest.approx(rate, abs=0.05)
    assert calibration(probability, is_first=False) == pytest.approx(probability)


def test_claims_of_another_size_are_apart() -> None:
    calibration = Calibration()
    for _ in range(80):
        calibration.observe(0.95, is_first=False, hit=False)
    assert calibration(0.95, is_first=False) < 0.1
    assert calibration(0.15, is_first=False) == pytest.approx(0.15)


@pytest.mark.parametrize("seed", range(30))
def test_it_stays_a_probability(seed: int) -> None:
    rng = random.Random(seed)
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(rng.random(), is_first=rng.random() < 0.5, hit=rng.random() < 0.5)
        assert 0.0 <= calibration(rng.random(), is_first=rng.random() < 0.5) <= 1.0, f"seed {seed}"
