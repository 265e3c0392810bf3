"""The first sample counts in full, every other one with its weight."""

from cosine_p2p.strategy.moving_average import moving_average


def test_samples_count_with_their_weight() -> None:
    assert moving_average(None, 3.0, weight=0.1) == 3.0
    assert moving_average(2.0, 4.0, weight=0.25) == 2.5
    assert moving_average(1.0, False, weight=0.5) == 0.5
