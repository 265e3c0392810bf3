"""The metrics of an in-memory swarm, and a list of all metrics of this project."""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from cosine_gateway.admission import Admission
from cosine_gateway.http.app import count_requests
from cosine_gateway.metrics import GenerationMetrics
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
from cosine_node.metrics.node import (
    LABELS,
    OF_DRAFTERS,
    OF_NETWORK,
    OF_REQUESTS,
    OF_STAGES,
    OF_VERIFIERS,
    Observed,
    ObservedPart,
    RequestPlaces,
    StagePool,
    registry_of,
)
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import StageService
from cosine_p2p.request.offload import Threads
from cosine_protocol.errors import ErrorCode
from cosine_protocol.records import Role
from tests.fuzz.staging import ScriptedStage
from tests.gateway.generations import DONE

SHARED = {*LABELS, "le"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


JOINED: Any = SimpleNamespace(
    transport=SimpleNamespace(connected_peers=4, open_streams=2, restarts=1), directory=SimpleNamespace(holders=15)
)
NETWORK: ObservedPart = (OF_NETWORK, JOINED)


def observed(member: SimulatedMember, *, model_name: str = "m") -> Observed:
    table = OF_DRAFTERS if member.role is Role.DRAFTER else OF_VERIFIERS
    return Observed(
        (member.role, model_name, member.identity.peer_id),
        {"version": "v", "target": "zoo:target", "numerics": member.engine.numerics},
        ((OF_REQUESTS, RequestPlaces(member.service, member.engine, 16)), (table, member.service), NETWORK),
    )


@dataclass(frozen=True, slots=True)
class Exported:
    """A metric: its name in queries, its type in a scrape, and its own labels."""

    name: str
    kind: str
    text: str
    labels: frozenset[str]


@cache
def registries() -> list[CollectorRegistry]:
    """The registries of a verifier and a drafter, a stage, and a gateway, with samples of each kind."""

    async def run() -> list[CollectorRegistry]:
        async with SimulatedSwarm() as swarm:
            members = [await swarm.verifier(), await swarm.drafter()]
            for member in members:
                member.service.counts.refused[ErrorCode.OVERLOADED] += 1
                member.service.counts.ended["error"] += 1
            network, engine = MemoryNetwork(), Threads("engine", 1)
            service = StageService(
                ScriptedStage(),
                transport=network.join("stage"),
                target_digest=bytes(32),
                passes=StagePasses(engine),
            )
            parts = ((OF_STAGES, StagePool(service, pool_tokens=64)), NETWORK)
            stage = Observed(("stage", "m", "stage"), {"version": "v", "layers": "0:1 of 1"}, parts)
            return [registry_of([*map(observed, members), stage])]

    generations = CollectorRegistry()
    GenerationMetrics(generations, model_name="m").observe(DONE)
    count_response = count_requests(generations, Admission(max_running=1, max_waiting=1), "m")
    count_response(200)
    return [*run_virtual(run()), generations]


def families() -> list[Metric]:
    """The metrics of this project, without those of the process."""
    found = [family for registry in registries() for family in registry.collect()]
    return [family for family in found if family.name.startswith(("cosine:", "libp2p_"))]


def exported() -> list[Exported]:
    """Each metric once, even if several kinds of nodes have it."""
    found = [
        Exported(
            family.name + (SUFFIXES[family.type][0] if family.type in ("counter", "info") else ""),
            "gauge" if family.type == "info" else family.type,
            family.documentation,
            frozenset(name for sample in family.samples for name in sample.labels) - SHARED,
        )
        for family in families()
    ]
    return list(dict.fromkeys(found))


def series_names() -> set[str]:
    """The names that queries can use."""
    return {family.name + suffix for family in families() for suffix in SUFFIXES[family.type]}
