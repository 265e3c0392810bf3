"""Peers find their places by what they measure, and liars move nobody far."""

import math
from collections.abc import Callable
from itertools import combinations
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.cities import CITIES, rtt_s
from cosine_p2p.directory.vivaldi import (
    LEAST_ERROR,
    MAX_RTT_S,
    MAX_STEP_S,
    USABLE_ERROR,
    Vivaldi,
    estimated_rtt_s,
)
from cosine_protocol.limits import MAX_COORDINATE_US
from cosine_protocol.messages import NetworkCoordinate
from tests.protocol.strategies import of_class

PLACES: st.SearchStrategy[NetworkCoordinate] = of_class(NetworkCoordinate)
ORIGIN = NetworkCoordinate(0, 0, 0, 0, 0)
Rtt = Callable[[int, int], float]
Lie = Callable[[Random], NetworkCoordinate]


def settled(peers: int, rtt: Rtt, *, samples: int, liars: int = 0, lie: Lie = lambda rng: ORIGIN) -> list[Vivaldi]:
    """The honest ones of some peers, the first of which lie, after so many samples of random others each."""
    rng = Random(7)
    places = [Vivaldi(rng.random) for _ in range(peers)]
    for _ in range(samples):
        for one in range(liars, peers):
            other = rng.choice([index for index in range(peers) if index != one])
            places[one].note_rtt(lie(rng) if other < liars else places[other].coordinate, rtt(one, other))
    return places[liars:]


def error_of(places: list[Vivaldi], rtt: Rtt, *, first: int = 0) -> float:
    """The median relative error of the estimates between peers, `first` being the number of the first."""
    return median(
        abs(one.coordinate.rtt_s(other.coordinate) - rtt(i + first, j + first)) / rtt(i + first, j + first)
        for (i, one), (j, other) in combinations(enumerate(places), 2)
    )


def on_the_globe(one: int, other: int) -> float:
    names = list(CITIES)
    return rtt_s(names[one % len(names)], names[other % len(names)])


@given(st.integers(0, 1 << 32))
def test_in_a_space_of_three_dimensions_with_heights_estimates_become_true(seed: int) -> None:
    rng = Random(seed)
    points = [([rng.uniform(0, 0.1) for _ in range(3)], rng.uniform(0.001, 0.02)) for _ in range(8)]

    def rtt(one: int, other: int) -> float:
        (a, height_a), (b, height_b) = points[one], points[other]
        return math.dist(a, b) + height_a + height_b

    places = settled(8, rtt, samples=400)
    assert error_of(places, rtt) < 0.1


@pytest.mark.parametrize(("samples", "most"), [(60, 0.3), (200, 0.12)])
def test_between_cities_of_the_world_the_error_falls_with_every_sample(samples: int, most: float) -> None:
    assert error_of(settled(16, on_the_globe, samples=samples), on_the_globe) < most


def anywhere(rng: Random) -> NetworkCoordinate:
    x_us, y_us, z_us = (rng.choice((-MAX_COORDINATE_US, MAX_COORDINATE_US)) for _ in range(3))
    return NetworkCoordinate(x_us, y_us, z_us, 0, 0)


@pytest.mark.parametrize("lie", [anywhere, lambda rng: ORIGIN], ids=["anywhere", "at the origin"])
def test_an_eighth_of_liars_leaves_the_estimates_between_others_of_use(lie: Lie) -> None:
    honest = settled(32, on_the_globe, samples=200, liars=4, lie=lie)
    assert error_of(honest, on_the_globe, first=4) < 0.2
    assert median(place.coordinate.error_permille for place in honest) <= 1000 * USABLE_ERROR


@given(st.lists(st.tuples(PLACES, st.floats(allow_nan=True)), max_size=8))
def test_no_sample_moves_a_peer_further_than_the_bound_or_off_the_map(
    samples: list[tuple[NetworkCoordinate, float]],
) -> None:
    place = Vivaldi(Random(0).random)
    for other, rtt in samples:
        before = place.coordinate
        place.note_rtt(other, rtt)
        after = place.coordinate
        moved_us = math.dist((before.x_us, before.y_us, before.z_us), (after.x_us, after.y_us, after.z_us))
        assert moved_us <= 1e6 * MAX_STEP_S + 3
        assert abs(after.height_us - before.height_us) <= 1e6 * MAX_STEP_S + 1
        assert max(map(abs, (after.x_us, after.y_us, after.z_us, after.height_us))) <= MAX_COORDINATE_US
        assert 1000 * LEAST_ERROR <= after.error_permille <= 1000


@pytest.mark.parametrize("rtt", [0.0, -1.0, math.nan, math.inf, MAX_RTT_S + 0.1])
def test_what_is_no_round_trip_time_is_ignored(rtt: float) -> None:
    place = Vivaldi(Random(0).random)
    before = place.coordinate
    place.note_rtt(ORIGIN, rtt)
    assert place.coordinate == before


def test_a_peer_that_knows_its_place_moves_less_than_a_newcomer() -> None:
    sure, new = settled(3, lambda one, other: 0.05, samples=200)[0], Vivaldi(Random(0).random)
    lie = NetworkCoordinate(MAX_COORDINATE_US, 0, 0, 0, 0)

    def moved_us(place: Vivaldi) -> float:
        before = place.coordinate
        place.note_rtt(lie, 0.01)
        return abs(place.coordinate.x_us - before.x_us)

    assert moved_us(sure) < 0.1 * moved_us(new)


def test_a_place_is_there_in_the_next_process_and_a_broken_one_is_none() -> None:
    place = settled(4, on_the_globe, samples=20)[0]
    again = Vivaldi(Random(0).random)
    again.restore(place.state())
    assert again.coordinate == place.coordinate
    for broken in (None, [], [1, 2, 3, 4], [1.5, 0, 0, 0, 0], [0, 0, 0, 0, 1001], [10**9, 0, 0, 0, 0], "place"):
        again.restore(broken)
        assert again.coordinate == place.coordinate


def test_nothing_is_estimated_for_a_peer_that_is_unsure_or_says_nothing() -> None:
    limit = round(1000 * USABLE_ERROR)
    sure, unsure = NetworkCoordinate(0, 0, 0, 500, limit), NetworkCoordinate(0, 0, 0, 500, limit + 1)
    assert estimated_rtt_s(sure, sure) == 0.001
    for one, other in ((sure, unsure), (unsure, sure), (sure, None), (None, sure)):
        assert estimated_rtt_s(one, other) is None
