"""A peer's network coordinate, which is updated with each measured round-trip time. Pure.

Vivaldi with height vectors and an adaptive timestep (Dabek et al., SIGCOMM 2004, sections 3.5 and 5.4). Peers claim
their coordinates, so no sample moves a peer by more than `MAX_STEP_S`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from cosine_protocol.fields import pack_fields, unpack_fields
from cosine_protocol.records import MAX_COORDINATE_US, NetworkCoordinate

STEP_SHARE: Final = 0.25  # The constant c_c of the paper, section 3.5.
ERROR_SHARE: Final = 0.25  # The constant c_e of the paper, section 3.5.
MAX_RTT_S: Final = 2.0  # A longer round trip measures a busy machine, not a distance.
MAX_STEP_S: Final = 0.05
"""The bound of each step, multiplied by the peer's error. If 4 of 32 peers in 16 cities claim absurd places,
estimates between the others are off by 12 % at the median, and by 400 % without this bound (decision 30)."""
LEAST_ERROR: Final = 0.05  # The lower bound of claimed errors, so that no single peer decides; links vary by more.
LEAST_HEIGHT_S: Final = 1e-4  # The round trip into a local network; keeps two peers apart.
USABLE_ERROR: Final = 0.5  # With a larger error a coordinate is worse than the median of known round trips.

Chance = Callable[[], float]  # Returns numbers from 0 to below 1.


class Vivaldi:
    """A peer's coordinate, initially the origin with the largest error. `chance` separates peers at one place."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._point_s: tuple[float, ...] = (0.0, 0.0, 0.0)
        self._height_s = LEAST_HEIGHT_S
        self._error = 1.0

    @property
    def coordinate(self) -> NetworkCoordinate:
        x_us, y_us, z_us = (round(1e6 * axis_s) for axis_s in self._point_s)
        return NetworkCoordinate(x_us, y_us, z_us, round(1e6 * self._height_s), round(1000 * self._error))

    def note_rtt(self, other: NetworkCoordinate, rtt_s: float) -> None:
        """Update the coordinate with a round-trip time to a peer at a claimed coordinate."""
        if not 0.0 < rtt_s <= MAX_RTT_S:
            return
        other_error = min(1.0, max(LEAST_ERROR, other.error_permille / 1000))
        other_s = (other.x_us / 1e6, other.y_us / 1e6, other.z_us / 1e6)
        apart_s = math.dist(self._point_s, other_s)
        heights_s = self._height_s + max(LEAST_HEIGHT_S, other.height_us / 1e6)
        estimated_s = apart_s + heights_s
        weight = self._error / (self._error + other_error)
        limit_s = MAX_STEP_S * self._error
        step_s = min(limit_s, max(-limit_s, STEP_SHARE * weight * (rtt_s - estimated_s)))
        sample_error = min(1.0, abs(estimated_s - rtt_s) / rtt_s)
        share = ERROR_SHARE * weight
        self._error = max(LEAST_ERROR, sample_error * share + self._error * (1 - share))
        along = self._direction_from(other_s, apart_s)
        self._point_s = tuple(
            _clamped(axis_s + step_s * (apart_s / estimated_s if apart_s else 1.0) * part)
            for axis_s, part in zip(self._point_s, along, strict=True)
        )
        self._height_s = max(LEAST_HEIGHT_S, _clamped(self._height_s + step_s * heights_s / estimated_s))

    def _direction_from(self, other_s: Sequence[float], apart_s: float) -> Sequence[float]:
        """The unit vector away from a point; a random one if both are equal."""
        if apart_s:
            return [(own - others) / apart_s for own, others in zip(self._point_s, other_s, strict=True)]
        drawn = [self._chance() - 0.5 for _ in self._point_s]
        length = math.hypot(*drawn)
        return [part / length for part in drawn] if length else (1.0, 0.0, 0.0)

    def state(self) -> list[object]:
        return pack_fields(self.coordinate)

    def restore(self, state: object) -> None:
        """Load the state of an earlier process. Raises `MalformedMessage`."""
        kept: NetworkCoordinate = unpack_fields(NetworkCoordinate, state)
        self._point_s = (kept.x_us / 1e6, kept.y_us / 1e6, kept.z_us / 1e6)
        self._height_s = max(LEAST_HEIGHT_S, kept.height_us / 1e6)
        self._error = max(LEAST_ERROR, kept.error_permille / 1000)


def estimated_rtt_s(one: NetworkCoordinate | None, other: NetworkCoordinate | None) -> float | None:
    """The round-trip time in seconds between two claimed coordinates; None if one is missing or too uncertain."""
    if one is None or other is None or max(one.error_permille, other.error_permille) > 1000 * USABLE_ERROR:
        return None
    return one.rtt_s(other)


def _clamped(seconds: float) -> float:
    bound_s = MAX_COORDINATE_US / 1e6
    return min(bound_s, max(-bound_s, seconds))
