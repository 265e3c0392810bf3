"""All metrics of this project, as a scrape would have them."""

from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.gateway.admission import Admission
from cosine_node.gateway.app import count_requests
from cosine_node.metrics import GenerationMetrics
from cosine_node.metrics.node import LABELS, NodeCollector, ObservedStage, StageCollector
from cosine_node.stages.service import StageService
from cosine_p2p.request.offload import Threads
from cosine_protocol.errors import ErrorCode
from tests.fuzz.staging import ScriptedStage
from tests.node.gateway.generations import DONE
from tests.node.metrics.observed import FixedDirectory, FixedNetwork, observed

SHARED = {*LABELS, "le"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


@dataclass(frozen=True, slots=True)
class Exported:
    """A metric by the name people write, its type in a scrape, and the labels only it has."""

    name: str
    kind: str
    text: str
    labels: frozenset[str]


@cache
def node_registry() -> CollectorRegistry:
    """Of a verifier and a drafter that have refused something and ended something."""

    async def run() -> list[NodeCollector]:
        async with SimulatedSwarm() as swarm:
            members = [await swarm.verifier(), await swarm.drafter()]
            for member in members:
                member.service.counts.refused[ErrorCode.OVERLOADED] += 1
                member.service.counts.ended["error"] += 1
            return [NodeCollector([observed(member) for member in members])]

    registry = CollectorRegistry()
    registry.register(*run_virtual(run()))
    return registry


@cache
def stage_registry() -> CollectorRegistry:
    """Of a stage that nobody has asked anything."""

    async def run() -> StageCollector:
        network = MemoryNetwork()
        service = StageService(
            ScriptedStage(), transport=network.join("stage"), target_digest=bytes(32), offload=Threads("engine", 1)
        )
        return StageCollector(
            ObservedStage(
                model_name="m",
                peer_id="stage",
                target="zoo:target",
                numerics="scripted",
                version="v",
                layers=ScriptedStage.layers,
                pool_tokens=64,
                service=service,
                network=FixedNetwork(),
                directory=FixedDirectory(),
            )
        )

    registry = CollectorRegistry()
    registry.register(run_virtual(run()))
    return registry


@cache
def generation_registry() -> CollectorRegistry:
    """Of a gateway that has answered something."""
    registry = CollectorRegistry()
    GenerationMetrics(registry, model_name="m").observe(DONE)
    count_response = count_requests(registry, Admission(max_running=1, max_waiting=1), "m")
    count_response(200)
    return registry


def exported() -> list[Exported]:
    """Each once, also where several kinds of nodes have it."""
    found = [
        Exported(
            family.name + (SUFFIXES[family.type][0] if family.type in ("counter", "info") else ""),
            "gauge" if family.type == "info" else family.type,
            family.documentation,
            frozenset(name for sample in family.samples for name in sample.labels) - SHARED,
        )
        for registry in (node_registry(), stage_registry(), generation_registry())
        for family in registry.collect()
    ]
    return list(dict.fromkeys(found))


def series_names() -> set[str]:
    """The names that a query may use."""
    return {
        family.name + suffix
        for registry in (node_registry(), stage_registry(), generation_registry())
        for family in registry.collect()
        for suffix in SUFFIXES[family.type]
    }
