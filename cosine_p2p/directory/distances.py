"""The round-trip times between peers as far as a client knows them: measured, told by a verifier, estimated. Pure.

What was measured counts before what is claimed. A client measures its own links; a verifier that coordinated tells
how far from it the drafters were, and its word counts at that verifier alone. Only where neither is known, the
coordinates in the records count, which are claims (docs/security.md).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.link import PeerLinks
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import pack_fields, unpack_fields
from cosine_protocol.limits import MAX_COORDINATE_US
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.protocols import DRAFT, VERIFY
from cosine_protocol.records import NodeRecord

# --------------------
# A peer's own network coordinate, moved a little by each round-trip time that it measures. Pure.
#
# The algorithm is Vivaldi with height vectors and an adaptive timestep (Dabek et al., SIGCOMM 2004, sections 3.5
# and
# 5.4). Others' coordinates are their own word, and a peer can delay its answers: so a sample moves a peer that
# knows
# its place by little, and nothing that is said moves it by more than `MAX_STEP_S`.


STEP_SHARE: Final = 0.25
"""The constant c_c of the paper, section 3.5."""
ERROR_SHARE: Final = 0.25
"""The constant c_e of the paper, section 3.5."""
MAX_RTT_S: Final = 2.0
"""A choice: what takes longer was no measurement of a distance, but of a machine that was busy."""
MAX_STEP_S: Final = 0.05
"""Times its error, nobody moves further with one sample. Where 4 of 32 peers in 16 cities claim absurd places,
estimates between the others are off by 12 % at the median, and by 400 % without this bound (decision 30)."""
LEAST_ERROR: Final = 0.05
"""A choice: nobody is believed to be surer, so that nobody's word alone decides; 5 % is less than links vary."""
LEAST_HEIGHT_S: Final = 1e-4
"""A choice: the way into a local network and back. Heights above 0 keep two peers from one point."""
USABLE_ERROR: Final = 0.5
"""A choice: with a larger error a coordinate says less than the median of what is known."""

Chance = Callable[[], float]
"""Gives numbers from 0 to below 1."""


class Vivaldi:
    """One peer's place. It begins at the origin, with the largest error. `chance` parts peers of one place."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._point_s: tuple[float, ...] = (0.0, 0.0, 0.0)
        self._height_s = LEAST_HEIGHT_S
        self._error = 1.0

    @property
    def coordinate(self) -> NetworkCoordinate:
        """The place as others are told it."""
        x_us, y_us, z_us = (round(1e6 * axis_s) for axis_s in self._point_s)
        return NetworkCoordinate(x_us, y_us, z_us, round(1e6 * self._height_s), round(1000 * self._error))

    def note_rtt(self, other: NetworkCoordinate, rtt_s: float) -> None:
        """Take in a measured round-trip time to a peer that says where it is; ignored if it is none."""
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
        """The unit vector away from a point; a random one where both are the same."""
        if apart_s:
            return [(own - others) / apart_s for own, others in zip(self._point_s, other_s, strict=True)]
        drawn = [self._chance() - 0.5 for _ in self._point_s]
        length = math.hypot(*drawn)
        return [part / length for part in drawn] if length else (1.0, 0.0, 0.0)

    def state(self) -> list[object]:
        """The place as values of JSON."""
        return pack_fields(self.coordinate)

    def restore(self, state: object) -> None:
        """Go on from where an earlier process was; what is broken is ignored."""
        try:
            kept: NetworkCoordinate = unpack_fields(NetworkCoordinate, state)
        except MalformedMessage:
            return
        self._point_s = (kept.x_us / 1e6, kept.y_us / 1e6, kept.z_us / 1e6)
        self._height_s = max(LEAST_HEIGHT_S, kept.height_us / 1e6)
        self._error = max(LEAST_ERROR, kept.error_permille / 1000)


def estimated_rtt_s(one: NetworkCoordinate | None, other: NetworkCoordinate | None) -> float | None:
    """The round-trip time between two peers by their own words; None where one says nothing or is too unsure."""
    if one is None or other is None or max(one.error_permille, other.error_permille) > 1000 * USABLE_ERROR:
        return None
    return one.rtt_s(other)


def _clamped(seconds: float) -> float:
    bound_s = MAX_COORDINATE_US / 1e6
    return min(bound_s, max(-bound_s, seconds))


# --------------------


MAX_PAIRS: Final = 2048
"""Bounds memory and the file; those told longest ago are forgotten first."""
FORGOTTEN_S: Final = 7 * 24 * 3600.0
"""A choice: as long as measured speeds last (`peer_speeds`)."""


class Distances:
    """Distances of drafters and verifiers. `chance` gives numbers from 0 to below 1; times never go back."""

    def __init__(self, chance: Chance) -> None:
        self.place = Vivaldi(chance)
        self._told = Remembered[tuple[str, str], float](MAX_PAIRS, forgotten_s=FORGOTTEN_S)
        self._found: dict[str, Sequence[NodeRecord]] = {}

    def measured(self, records: Sequence[NodeRecord], links: PeerLinks, protocol: str) -> dict[str, float]:
        """The round-trip times to those nodes that a link is open to; they also say where this client is."""
        self._found[protocol] = records
        rtts_s = {}
        for record in records:
            link = links.alive(record.peer_id, protocol)
            if link is not None and link.rtt_s:
                rtts_s[record.peer_id] = link.rtt_s
                if record.coordinate is not None:
                    self.place.note_rtt(record.coordinate, link.rtt_s)
        return rtts_s

    def measure_again(self, links: PeerLinks) -> None:
        """Take in what links to the nodes found last have measured since."""
        for protocol, records in self._found.items():
            self.measured(records, links, protocol)

    def to_verifier(self, verifier: NodeRecord, links: PeerLinks) -> float | None:
        """The round-trip time to a verifier, measured or estimated; None if nothing is known."""
        link = links.alive(verifier.peer_id, VERIFY)
        if link is not None and link.rtt_s:
            return link.rtt_s
        return estimated_rtt_s(self.place.coordinate, verifier.coordinate)

    def by_verifier(
        self, drafters: Sequence[NodeRecord], verifier: NodeRecord, links: PeerLinks, *, now_s: float
    ) -> dict[str, float]:
        """The round trips of drafts where the verifier coordinates: between each drafter, as far as known, and it.

        Where nothing is known of any, those to this client are better than nothing.
        """
        measured_s = self.measured(drafters, links, DRAFT)
        rtts_s = {}
        for drafter in drafters:
            rtt_s = self._told.get((verifier.peer_id, drafter.peer_id), now_s)
            if rtt_s is None:
                rtt_s = estimated_rtt_s(drafter.coordinate, verifier.coordinate)
            if rtt_s is not None:
                rtts_s[drafter.peer_id] = rtt_s
        return rtts_s or measured_s

    def by_client(self, drafters: Sequence[NodeRecord], verifier: NodeRecord, links: PeerLinks) -> dict[str, float]:
        """The round trips of drafts where the client coordinates: from each drafter, as far as known, past it."""
        rtts_s = self.measured(drafters, links, DRAFT)
        for drafter in drafters:
            rtt_s = estimated_rtt_s(self.place.coordinate, drafter.coordinate)
            if rtt_s is not None:
                rtts_s.setdefault(drafter.peer_id, rtt_s)
        onwards_s = self.to_verifier(verifier, links) or 0.0
        return {peer_id: rtt_s + onwards_s for peer_id, rtt_s in rtts_s.items()}

    def note_told(self, verifier: str, drafter: str, rtt_s: float, *, now_s: float) -> None:
        """Take a verifier's word for how far from it a drafter is; 0 if it did not measure that."""
        if 0.0 < rtt_s <= MAX_RTT_S:
            self._told.note((verifier, drafter), rtt_s, now_s)

    def state(self, now_s: float) -> dict[str, Any]:
        """The client's place and what it was told, [verifier, drafter, seconds, age], as values of JSON."""
        told = self._told.state(now_s, lambda pair, rtt_s: [*pair, rtt_s])
        return {"place": self.place.state(), "told": told}

    def restore(self, state: Any, *, now_s: float, away_s: float) -> None:
        """Take in what another process kept `away_s` ago; what is broken is left out."""
        match state:
            case {"place": place, "told": list(told)}:
                self.place.restore(place)
                self._told.restore(told, _read_told, now_s=now_s, away_s=away_s)


def _read_told(entry: list[Any]) -> tuple[tuple[str, str], float] | None:
    match entry:
        case [str(verifier), str(drafter), float(rtt_s)] if 0.0 < rtt_s <= MAX_RTT_S:
            return (verifier, drafter), rtt_s
    return None
