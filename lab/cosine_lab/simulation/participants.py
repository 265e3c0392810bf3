"""The nodes and clients of a scenario in one simulated swarm, and the faults of its plan."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from cosine_lab.emulation.links import LinkModel, LinkTable, Partition, seeded
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.round_trips import BY_TRANSPORT, FULL
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.simulation.discovery import SimulatedDht
from cosine_lab.simulation.faults import Fault, FaultKind, FaultPlan, Population, plan_faults
from cosine_lab.simulation.liars import LATE, LIES, Liar, Overheard, OverheardIdentity
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.report import EventLog, NodeUse
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.stages import Ring, SimulatedStage, even_parts
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedMember, SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_lab.simulation.workload import Workload
from cosine_p2p.client import AsyncClient
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.identity import Identity
from cosine_protocol.records import Role

LATE_S: Final = 0.1
"""Additional time of the passes of a deliberately late drafter: several honest passes."""
FAILOVER_S: Final = 5.0
"""Generous bound on the time from a verifier's silence to the first token of the next one."""
PLENTY: Final = 3
"""Deadline of a request as a multiple of plain decoding at one round trip per token."""


def identity_of(kind: str, index: int) -> Identity:
    """Return the identity of a peer of a simulation, the same in every run."""
    return Identity.from_seed(blake2b(f"{kind} {index}".encode(), digest_size=32).digest())


def population_of(scenario: Scenario) -> Population:
    """Return the population of a scenario; faults begin in the time that plain decoding would take one client."""
    pass_s = scenario.curve(Role.VERIFIER).seconds(1)
    horizon_s = scenario.requests * scenario.max_new_tokens * pass_s
    return Population(
        verifiers=scenario.verifiers,
        drafters=scenario.drafters,
        clients=scenario.clients,
        stages=scenario.stages,
        horizon_s=horizon_s,
    )


@dataclass(slots=True)
class Participants:
    """All participants of one run. Create it inside the event loop; nodes are numbered as in `Population`."""

    scenario: Scenario
    workload: Workload
    log: EventLog
    verifier_options: Mapping[str, Any] = field(default_factory=dict)
    strategies: Mapping[str, StrategyKind] = field(default_factory=lambda: ALL_STRATEGIES)
    plan: FaultPlan = field(init=False)
    population: Population = field(init=False)
    swarm: SimulatedSwarm = field(init=False)
    gone_clients: set[int] = field(default_factory=set)
    _nodes: dict[int, SimulatedMember] = field(default_factory=dict)
    _stages: list[SimulatedStage] = field(default_factory=list)
    _clients: dict[int, Identity] = field(default_factory=dict)
    _overheard: Overheard = field(default_factory=Overheard)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.population = population_of(scenario)
        self.plan = plan_faults(scenario.faults, rng=seeded(scenario.seed, "faults"), population=self.population)
        self._clients = {index: identity_of("client", index) for index in range(scenario.clients)}
        clients = frozenset(identity.peer_id for identity in self._clients.values())
        of_client = BY_TRANSPORT[scenario.transport]
        self.swarm = SimulatedSwarm(
            MemoryNetwork(
                routes=self._links().route, round_trips=lambda peer_id: of_client if peer_id in clients else FULL
            ),
            facts=facts_of(self.workload.eos),
            directory_of=SimulatedDht().directory,
            emulated=scenario.profile,
            place_seed=scenario.seed if self.settle_s else None,
        )

    @property
    def settle_s(self) -> float:
        """The time that nodes have to find their places before the first request."""
        return self.scenario.settle_s if self.scenario.client_cities else 0.0

    @property
    def must_finish(self) -> bool:
        """True if one verifier can finish every request of the remaining clients, all at once and in time."""
        scenario = self.scenario
        pass_s = scenario.curve(Role.VERIFIER).seconds(scenario.max_requests)
        if scenario.stages:
            pass_s = scenario.stages * pass_s + scenario.traversal_ms / 1e3
        round_s = pass_s + scenario.longest_rtt_s
        return (
            self.plan.spares(self.population.spare)
            and scenario.total_requests <= scenario.max_requests
            and scenario.timeout_s >= PLENTY * (scenario.max_new_tokens * round_s + FAILOVER_S)
        )

    async def start_nodes(self) -> None:
        """Start every node, the liars of the plan last."""
        for index, layers in enumerate(even_parts(self.scenario.stages) * self.scenario.stage_copies):
            stage = await self.swarm.stage(
                layers,
                partial(self.workload.target, 0),
                curve=self.scenario.curve(Role.VERIFIER),
                more_s=self.scenario.stage_more_ms / 1e3,
                identity=identity_of("stage", index),
            )
            self._stages.append(stage)
        for node in range(self.scenario.verifiers + self.scenario.drafters):
            await self._start_node(node)
        for index, lie in enumerate(self.plan.lies):
            await self._start_liar(index, lie)
        if self.settle_s:
            renewing = asyncio.ensure_future(self.swarm.keep_announced())
            await asyncio.sleep(self.settle_s)
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self.swarm.announce_members()

    async def client(self, index: int) -> AsyncClient:
        scenario = self.scenario
        return await self.swarm.client(
            identity=self._clients[index],
            strategies=self.strategies,
            strategy=scenario.strategy,
            timeout_s=scenario.timeout_s,
            max_drafters=scenario.max_drafters,
            prompt_window_tokens=scenario.prompt_window_tokens,
            coordination=scenario.coordination,
        )

    async def run_faults(self) -> None:
        """Perform every fault of the plan at its time and renew records, until cancelled."""
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(
            self.swarm.keep_announced(), *(self._run_fault(fault, began_s) for fault in self.plan.faults)
        )

    def uses(self) -> tuple[NodeUse, ...]:
        """Return the use of each node, except liars without a service; a restarted one is there twice."""
        return tuple(
            NodeUse(
                peer_id=member.identity.peer_id,
                role=member.role,
                domain=member.domain,
                passes=member.machine.use.passes,
                rows=member.machine.use.rows,
                tokens_fed=member.machine.use.tokens,
                busy_s=member.machine.use.busy_s,
                carried_bytes=member.wire.carried_bytes,
            )
            for member in self.swarm.members
        )

    def _links(self) -> LinkTable:
        scenario = self.scenario
        link = LinkModel(
            one_way_s=scenario.rtt_ms / 2e3,
            jitter_s=scenario.jitter_ms / 1e3,
            loss=scenario.loss,
            **({"rate_bytes_per_s": scenario.rate_bytes_per_s} if scenario.rate_bytes_per_s else {}),
        )
        partitions = tuple(
            Partition(
                start_s=self.settle_s + fault.at_s,
                end_s=self.settle_s + fault.at_s + fault.lasts_s,
                group=frozenset(self._node_identity(node).peer_id for node in fault.affected),
            )
            for fault in self.plan.of(FaultKind.PARTITION)
        )
        clients = [identity.peer_id for identity in self._clients.values()]
        deciding = list(clients)
        if scenario.coordination != Coordination.CLIENT:
            deciding += [identity_of("verifier", index).peer_id for index in range(scenario.verifiers)]
        return LinkTable(
            seed=scenario.seed,
            default=link,
            send_costs_s=dict.fromkeys(deciding, scenario.decision_s),
            partitions=partitions,
            cities=self._cities(),
            ring=frozenset(self._ring_peers()),
            ring_one_way_s=scenario.hop_s,
        )

    def _ring_peers(self) -> list[str]:
        """Return the peers of the ring of a model in parts; none for a whole model."""
        stages = self.scenario.stages * self.scenario.stage_copies
        if not stages:
            return []
        groups = (("verifier", self.scenario.verifiers), ("stage", stages))
        return [identity_of(kind, index).peer_id for kind, members in groups for index in range(members)]

    @property
    def _ring(self) -> Ring:
        scenario = self.scenario
        return Ring(
            stages=self._stages, traversal_s=scenario.traversal_ms / 1e3, most_under_way=scenario.most_under_way
        )

    def _cities(self) -> dict[str, str]:
        """Return the city of each peer by its id; liars are among the drafters."""
        scenario = self.scenario
        groups = (
            ("client", scenario.clients, scenario.client_cities),
            ("verifier", scenario.verifiers, scenario.verifier_cities),
            ("drafter", scenario.drafters, scenario.drafter_cities),
            ("liar", len(self.plan.lies), scenario.drafter_cities),
        )
        return {
            identity_of(kind, index).peer_id: cities[index % len(cities)]
            for kind, members, cities in groups
            if cities
            for index in range(members)
        }

    def _node_identity(self, node: int) -> Identity:
        verifiers = self.scenario.verifiers
        return identity_of("verifier", node) if node < verifiers else identity_of("drafter", node - verifiers)

    async def _start_node(self, node: int) -> None:
        scenario, identity = self.scenario, self._node_identity(node)
        if node < scenario.verifiers:
            kind = self.strategies[scenario.strategy]
            is_full = self.plan.affects(FaultKind.OVERLOAD, node)
            drafter = self.workload.home(node) if scenario.home else None
            options = {
                "identity": identity,
                "home": None if drafter is None else SimulatedHome(drafter, scenario.curve(Role.DRAFTER)),
                "coordination": kind if kind.is_delegable else None,
                "max_requests": 0 if is_full else scenario.max_requests,
                **self.verifier_options,
            }
            if isinstance(kind, SteppedKind):
                options["policy"] = Policy(is_stepped=True)
            whole = self.workload.target(node)
            if scenario.stages:
                self._nodes[node] = await self.swarm.head(self._ring, whole, **options)
            else:
                curve = scenario.curve(Role.VERIFIER)
                self._nodes[node] = await self.swarm.verifier(whole, curve=curve, **options)
            return
        index = node - scenario.verifiers
        is_overheard = "replay" in self.plan.lies
        self._nodes[node] = await self.swarm.drafter(
            self.workload.drafter(index),
            curve=scenario.curve(Role.DRAFTER, index=index),
            identity=OverheardIdentity(identity, self._overheard) if is_overheard else identity,
            domain=scenario.domain(index),
            max_requests=0 if self.plan.affects(FaultKind.BUSY, node) else scenario.max_requests,
        )

    async def _start_liar(self, index: int, lie: str) -> None:
        identity, domain = identity_of("liar", index), f"liar-{index}"
        if lie != LATE:
            await self.swarm.drafter_with(partial(self._lie_handler, lie=lie), domain=domain, identity=identity)
            return
        member = await self.swarm.drafter(
            self.workload.drafter(index),
            curve=self.scenario.curve(Role.DRAFTER),
            identity=identity,
            domain=domain,
            max_requests=self.scenario.max_requests,
        )
        member.machine.extra_s = LATE_S

    def _lie_handler(self, identity: Identity, *, lie: str) -> StreamHandler:
        vocab_tokens = self.workload.vocab_tokens
        return Liar(identity, LIES[lie], vocab_tokens=vocab_tokens, overheard=self._overheard).handle

    async def _run_fault(self, fault: Fault, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(began_s + fault.at_s - loop.time())
        self.log.note(loop.time(), f"{fault.kind.value} {fault.lie}", -1, fault.affected)
        if fault.kind is FaultKind.KILL_CLIENT:
            (client,) = fault.affected
            self.gone_clients.add(client)
            transport = self.swarm.network.transports.get(self._clients[client].peer_id)
            if transport is not None:
                transport.vanish()
            return
        if fault.kind is FaultKind.KILL_STAGE:
            for index in fault.affected:
                self._stages[index].kill()
            return
        for node in fault.affected:
            await self._affect_node(node, fault)

    async def _affect_node(self, node: int, fault: Fault) -> None:
        member = self._nodes[node]
        match fault.kind:
            case FaultKind.KILL_DRAFTER | FaultKind.KILL_VERIFIER:
                await member.kill()
            case FaultKind.RESTART_DRAFTER | FaultKind.RESTART_VERIFIER:
                await member.kill()
                await asyncio.sleep(fault.lasts_s)
                await self._start_node(node)
            case FaultKind.STALL:
                member.machine.stalled_until_s = asyncio.get_running_loop().time() + fault.lasts_s
            case FaultKind.SLOW:
                member.machine.slowness = max(1.0, fault.lasts_s)
            case FaultKind.BAD_ROW:
                member.machine.bad_passes += 1
            case FaultKind.CORRUPT:
                member.wire.damaged_writes += 1
            case _:
                # Partitions, overload and busy drafters hold from the start: links and nodes are made with them.
                return
