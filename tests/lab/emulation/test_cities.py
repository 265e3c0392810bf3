"""The positions of cities, and plausible round trips between them."""

import pytest

from cosine_lab.emulation.cities import ACCESS_S, rtt_s
from cosine_protocol.errors import UsageError


@pytest.mark.parametrize(("one", "other", "km"), [("london", "new-york", 5570), ("sydney", "sao-paulo", 13370)])
def test_a_round_trip_is_twice_the_great_circle_with_its_detours_in_fibre(one: str, other: str, km: float) -> None:
    assert rtt_s(one, other) == pytest.approx(2 * 2.1 * km / 200_000 + ACCESS_S, rel=0.01)
    assert rtt_s(other, one) == pytest.approx(rtt_s(one, other))


def test_an_unknown_city_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="Unknown city 'atlantis'; choose from amsterdam, "):
        rtt_s("london", "atlantis")
