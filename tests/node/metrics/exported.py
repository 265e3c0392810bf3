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
from cosine_node.metrics.node import LABELS, ObservedNode, ObservedStage, registry_of
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import StageService
from cosine_p2p.request.offload import Threads
from cosine_protocol.errors import ErrorCode
from tests.fuzz.staging import ScriptedStage
from tests.gateway.generations import DONE

SHARED = {*LABELS, "le"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


NETWORK: Any = SimpleNamespace(connected_peers=4, open_streams=2, restarts=1)
DIRECTORY: Any = SimpleNamespace(holders=15)


def observed(member: SimulatedMember, *, model_name: str = "m") -> ObservedNode:
    return ObservedNode(
        role=member.role,
        model_name=model_name,
        peer_id=member.identity.peer_id,
        facts={"version": "v", "target": "zoo:target", "numerics": member.engine.numerics},
        max_requests=16,
        service=member.service,
        engine=member.engine,
        network=NETWORK,
        directory=DIRECTORY,
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
            stage = ObservedStage(
                role="stage",
                model_name="m",
                peer_id="stage",
                facts={"version": "v", "layers": "0:1 of 1"},
                pool_tokens=64,
                service=StageService(
                    ScriptedStage(),
                    transport=network.join("stage"),
                    target_digest=bytes(32),
                    passes=StagePasses(engine),
                ),
                network=NETWORK,
                directory=DIRECTORY,
            )
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
