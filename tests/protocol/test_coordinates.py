"""Network coordinates: a distance that behaves like a round-trip time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.messages import NetworkCoordinate
from tests.protocol.strategies import of_class

PLACES: st.SearchStrategy[NetworkCoordinate] = of_class(NetworkCoordinate)


def test_the_way_between_two_peers_is_their_distance_and_both_heights() -> None:
    one = NetworkCoordinate(10_000, 0, 20_000, 1_000, 0)
    other = NetworkCoordinate(10_000, 30_000, 60_000, 4_000, 999)
    assert one.rtt_s(other) == pytest.approx(0.050 + 0.005)


@given(PLACES, PLACES, PLACES)
def test_it_is_finite_the_same_both_ways_and_no_detour_is_shorter(
    one: NetworkCoordinate, other: NetworkCoordinate, third: NetworkCoordinate
) -> None:
    assert 0.0 <= one.rtt_s(other) < 30.0
    assert one.rtt_s(other) == other.rtt_s(one)
    assert one.rtt_s(other) <= one.rtt_s(third) + third.rtt_s(other) + 1e-9
