"""Tests of the choice of drafters by the route of their drafts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_p2p.directory.distances import Distances
from cosine_p2p.request.options import DEFAULTS, ClientOptions, merge_options
from cosine_p2p.session.job import Shared
from cosine_p2p.session.peer_search import MAX_ASKED_DRAFTERS, PeerSearch, RecentFinds
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.text.target import Target
from cosine_p2p.transport.link import Links
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.records import NetworkCoordinate, NodeRecord
from tests.cosine_p2p.samples import TARGET, identity_of, record_of

NOW_S = 1000.0
CLIENT = identity_of(100)


def at(ms: float) -> NetworkCoordinate:
    return NetworkCoordinate(round(1000 * ms), 0, 0, 0, 50)


VERIFIER = record_of(identity_of(99), now_s=NOW_S, pass_us=60_000, coordinate=at(100))
NEAR_VERIFIER = [record_of(identity_of(number), now_s=NOW_S, coordinate=at(95)) for number in range(10)]
NEAR_CLIENT = [record_of(identity_of(number), now_s=NOW_S, coordinate=at(5)) for number in range(10, 20)]
EVERYBODY = [*NEAR_CLIENT, *NEAR_VERIFIER]


@dataclass(slots=True)
class Scene:
    strategy: str = "cosine"
    options: dict[str, Any] = field(default_factory=dict)
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    mandates: Mandates | None = field(default_factory=lambda: Mandates(CLIENT, lambda: NOW_S))
    failures: PeerFailures = field(default_factory=PeerFailures)
    distances: Distances = field(default_factory=lambda: Distances(Random(0).random))

    def __post_init__(self) -> None:
        for _ in range(100):
            for x_us, y_us, rtt_s in ((0, 0, 0.001), (100_000, 0, 0.1), (0, 50_000, 0.05), (0, -50_000, 0.05)):
                self.distances.place.note_rtt(NetworkCoordinate(x_us, y_us, 0, 0, 50), rtt_s)

    def search(self, *, seed: int = 0) -> PeerSearch:
        links = Links(MemoryNetwork().join(CLIENT.peer_id))
        options: ClientOptions = {"target": TARGET, **self.options}  # type: ignore[typeddict-item]
        return PeerSearch(
            finds=RecentFinds(self.directory, links, lambda: NOW_S),
            shared=Shared(
                links=links,
                offload=call_at_once,
                distances=self.distances,
                failures=self.failures,
                mandates=self.mandates,
            ),
            choose_digest=lambda name, offered: min(offered),
            target=Target(TARGET),
            named=TARGET,
            strategy=STRATEGIES[self.strategy],
            options=merge_options(DEFAULTS, options, ClientOptions),
            chance=Random(seed).random,
        )

    def asked(self, found: list[NodeRecord], *, seed: int = 0) -> tuple[NodeRecord, ...]:
        return self.search(seed=seed).choose_drafters(found, VERIFIER, now_s=NOW_S)

    def chosen(self, found: list[NodeRecord]) -> set[str]:
        return ids(self.asked(found))


def ids(records: Iterable[NodeRecord]) -> set[str]:
    return {record.peer_id for record in records}


def test_where_the_verifier_coordinates_its_neighbours_are_asked() -> None:
    chosen = Scene(options={"coordination": "auto"}).chosen(EVERYBODY)
    assert chosen <= ids(NEAR_VERIFIER) and len(chosen) == MAX_ASKED_DRAFTERS


@pytest.mark.parametrize("scene", [Scene(options={"coordination": "client"}), Scene(mandates=None)])
def test_where_the_client_coordinates_its_own_neighbours_are_asked(scene: Scene) -> None:
    chosen = scene.chosen(EVERYBODY)
    assert chosen <= ids(NEAR_CLIENT) and len(chosen) == MAX_ASKED_DRAFTERS


def test_those_that_failed_lately_are_left_out() -> None:
    scene = Scene()
    scene.failures.note_failed(NEAR_VERIFIER[0].peer_id, now_s=NOW_S)
    assert scene.chosen(NEAR_VERIFIER[:3]) == ids(NEAR_VERIFIER[1:3])
