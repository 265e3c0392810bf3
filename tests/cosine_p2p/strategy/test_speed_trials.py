"""Trials by who serves and how it samples: a new one begins like the nearest known, and memory is bounded."""

from cosine_p2p.strategy.speed_trial import MAX_TRIALS, SpeedTrials


def test_another_temperature_begins_where_the_nearest_stands() -> None:
    trials = SpeedTrials((3, 1, 0))
    known = trials.find("verifier", 0.8)
    assert known is not None and trials.find("verifier", 0.8) is known
    known.way = 0
    near, elsewhere = trials.find("verifier", 1.0), trials.find("another", 1.0)
    assert near is not None and elsewhere is not None
    assert (near.way, elsewhere.way) == (0, 3)


def test_without_ways_there_is_nothing_to_try() -> None:
    assert SpeedTrials(()).find("verifier", 0.0) is None


def test_memory_is_bounded() -> None:
    trials = SpeedTrials((1, 0))
    first = trials.find("0", 0.0)
    for number in range(MAX_TRIALS):
        trials.find(str(number + 1), 0.0)
    assert trials.find("0", 0.0) is not first
