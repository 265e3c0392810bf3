"""Coordinates follow measurements, which override claims; liars move nobody far."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.cities import CITIES, rtt_s
from cosine_p2p.directory.distances import FORGOTTEN_S, Distances
from cosine_p2p.directory.vivaldi import LEAST_ERROR, MAX_STEP_S, USABLE_ERROR, Vivaldi
from cosine_p2p.transport.link import PeerLink
from cosine_protocol.draft import DRAFT
from cosine_protocol.records import MAX_COORDINATE_US, NetworkCoordinate, NodeRecord
from cosine_protocol.verify import VERIFY
from tests.cosine_p2p.samples import identity_of, record_of
from tests.protocol.strategies import COORDINATES

NOW_S = 1000.0


@dataclass(slots=True)
class MeasuredLinks:
    rtts_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    async def get(self, peer_id: str, protocol: str) -> PeerLink:
        raise NotImplementedError

    def alive(self, peer_id: str, protocol: str) -> PeerLink | None:
        rtt_s = self.rtts_s.get((peer_id, protocol))
        return None if rtt_s is None else cast(PeerLink, SimpleNamespace(rtt_s=rtt_s))


def at(ms: float, *, error_permille: int = 50) -> NetworkCoordinate:
    """A place on a line, `ms` from the origin."""
    return NetworkCoordinate(round(1000 * ms), 0, 0, 0, error_permille)


def record(number: int, place: NetworkCoordinate | None = None) -> NodeRecord:
    return record_of(identity_of(number), now_s=NOW_S, coordinate=place)


def distances() -> Distances:
    return Distances(Random(0).random)


VERIFIER = record(1, at(100))
NEAR, FAR, SILENT, UNSURE = record(2, at(90)), record(3, at(10)), record(4), record(5, at(100, error_permille=900))
DRAFTERS = [NEAR, FAR, SILENT, UNSURE]
NO_LINKS = MeasuredLinks()


def test_a_verifier_that_coordinates_is_as_far_as_the_records_say() -> None:
    known = distances().by_verifier(DRAFTERS, VERIFIER, NO_LINKS, now_s=NOW_S)
    assert known == pytest.approx({NEAR.peer_id: 0.01, FAR.peer_id: 0.09})


def test_what_the_verifier_measured_counts_before_a_false_claim_at_that_verifier_until_it_is_old() -> None:
    """A drafter with a false claim is believed only once."""
    liar, other_verifier = record(6, at(100)), record(7, at(100))
    known = distances()
    known.note_told(VERIFIER.peer_id, liar.peer_id, 0.25, now_s=NOW_S)

    def of_liar(verifier: NodeRecord, now_s: float) -> float:
        return known.by_verifier([liar, NEAR], verifier, NO_LINKS, now_s=now_s)[liar.peer_id]

    assert of_liar(VERIFIER, NOW_S) == 0.25
    assert of_liar(other_verifier, NOW_S) == of_liar(VERIFIER, NOW_S + FORGOTTEN_S) == 0.0


def test_if_the_client_coordinates_drafts_pass_it_and_its_own_link_overrides_a_claim() -> None:
    known = distances()
    # The client measures that it is at the origin of the line.
    beacons = [record(20, at(0)), record(21, NetworkCoordinate(0, 50_000, 0, 0, 50)), VERIFIER, FAR]
    rtts_s = zip(beacons, (0.001, 0.05, 0.1, 0.01), strict=True)
    links = MeasuredLinks({(beacon.peer_id, VERIFY): rtt_s for beacon, rtt_s in rtts_s})
    for _ in range(100):
        known.measured(beacons, links, VERIFY)
    liar = record(8, at(0))
    links = MeasuredLinks({(VERIFIER.peer_id, VERIFY): 0.1, (liar.peer_id, DRAFT): 0.2})
    ways_s = known.by_client([NEAR, FAR, SILENT, liar], VERIFIER, links)
    assert ways_s == pytest.approx(
        {NEAR.peer_id: 0.09 + 0.1, FAR.peer_id: 0.01 + 0.1, liar.peer_id: 0.2 + 0.1}, abs=0.01
    )


ORIGIN = NetworkCoordinate(0, 0, 0, 0, 0)
Rtt = Callable[[int, int], float]
Lie = Callable[[Random], NetworkCoordinate]


def settled(peers: int, rtt: Rtt, *, samples: int, liars: int = 0, lie: Lie = lambda rng: ORIGIN) -> list[Vivaldi]:
    """Return the honest peers after `samples` measurements each, of random others; the first `liars` peers lie."""
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


def anywhere(rng: Random) -> NetworkCoordinate:
    x_us, y_us, z_us = (rng.choice((-MAX_COORDINATE_US, MAX_COORDINATE_US)) for _ in range(3))
    return NetworkCoordinate(x_us, y_us, z_us, 0, 0)


@pytest.mark.parametrize("lie", [anywhere, lambda rng: ORIGIN], ids=["anywhere", "at the origin"])
def test_an_eighth_of_liars_leaves_the_estimates_between_others_of_use(lie: Lie) -> None:
    honest = settled(32, on_the_globe, samples=200, liars=4, lie=lie)
    assert error_of(honest, on_the_globe, first=4) < 0.2
    assert median(place.coordinate.error_permille for place in honest) <= 1000 * USABLE_ERROR


@given(st.lists(st.tuples(COORDINATES, st.floats(allow_nan=True)), max_size=8))
def test_no_sample_moves_a_peer_too_far_or_off_the_map(samples: list[tuple[NetworkCoordinate, float]]) -> None:
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
