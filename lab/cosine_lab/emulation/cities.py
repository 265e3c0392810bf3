"""Cities of the world, and the round-trip times between machines in them.

Light in glass fibre has two thirds of its speed in vacuum, and the routes that packets take are longer than the
line of sight. Bozkurt et al. (*Dissecting Latency in the Internet's Fiber Infrastructure*, arXiv 1811.10737) name a
rule of thumb that earlier measurements suggest: the latency is that of 2.1 times the line of sight in fibre.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cosine_protocol.errors import UsageError

EARTH_RADIUS_KM: Final = 6371.0
"""The mean radius (IUGG)."""
FIBRE_KM_PER_S: Final = 200_000.0
"""About two thirds of the speed of light in vacuum, see above."""
DETOUR: Final = 2.1
"""The rule of thumb of arXiv 1811.10737, see above."""
ACCESS_S: Final = 0.008
"""Latency that the access lines at both ends add to a round trip; the round trip within a city."""

CITIES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "amsterdam": (52.37, 4.90),
        "bangalore": (12.97, 77.59),
        "buenos-aires": (-34.60, -58.38),
        "chicago": (41.88, -87.63),
        "frankfurt": (50.11, 8.68),
        "johannesburg": (-26.20, 28.05),
        "london": (51.51, -0.13),
        "los-angeles": (34.05, -118.24),
        "madrid": (40.42, -3.70),
        "new-york": (40.71, -74.01),
        "sao-paulo": (-23.55, -46.63),
        "seoul": (37.57, 126.98),
        "singapore": (1.35, 103.82),
        "sydney": (-33.87, 151.21),
        "tokyo": (35.68, 139.69),
        "warsaw": (52.23, 21.01),
    }
)
"""Latitude and longitude in degrees."""


def check_city(name: str) -> None:
    """Raise `UsageError` for a city that is not in the table."""
    if name not in CITIES:
        raise UsageError(f"Unknown city {name!r}; choose from {', '.join(CITIES)}.")


def rtt_s(one: str, other: str) -> float:
    """Return the round-trip time in seconds between two (possibly equal) cities. Raises `UsageError`."""
    check_city(one)
    check_city(other)
    return 2 * DETOUR * _distance_km(one, other) / FIBRE_KM_PER_S + ACCESS_S


def _distance_km(one: str, other: str) -> float:
    """Return the great-circle distance, by the haversine formula."""
    (lat_1, lon_1), (lat_2, lon_2) = ([math.radians(angle) for angle in CITIES[name]] for name in (one, other))
    squared = (
        math.sin((lat_2 - lat_1) / 2) ** 2 + math.cos(lat_1) * math.cos(lat_2) * math.sin((lon_2 - lon_1) / 2) ** 2
    )
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(squared))
