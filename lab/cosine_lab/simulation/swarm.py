"""A whole swarm in one process: real services, coordinator and clients on the in-memory network."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from types import TracebackType
from typing import Any, Final

from cosine_engine.base import Engine
from cosine_engine.curve import CostCurve
from cosine_engine.models.unloading import WaitForWork
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.links import seeded
from cosine_lab.emulation.machine import MachineUse, SimulatedMachine, WatchedTransport, Wire
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.simulation.records import LIFETIME_S, RECORD, TARGET, facts_of
from cosine_lab.simulation.stages import Ring, RingFinder, SimulatedStage
from cosine_lab.simulation.verifiers import Policy, verifier_class
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.passes.runner import PassSpeed, Runner, ServedEngine
from cosine_node.serving.status_service import StatusService
from cosine_node.serving.surroundings import Surroundings
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter, SeenLayers
from cosine_node.verifier.service import VerifierService
from cosine_p2p.client import AsyncClient, Swarm
from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.discover import STATUS
from cosine_protocol.draft import DRAFT
from cosine_protocol.identity import Identity
from cosine_protocol.records import NetworkCoordinate, NodeRecord, Role, TargetFacts
from cosine_protocol.request import NONCE_BYTES
from cosine_protocol.stage import LayerRange

VERIFY_CURVE: Final = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
"""The default profile 60/6 of `cosine_node.passes.emulation` for a verifier."""
DRAFT_CURVE: Final = CostCurve(((1, 0.006), (8, 0.00625), (16, 0.0075), (32, 0.0099)))
"""The same for a drafter."""
ANNOUNCE_S: Final = 5.0
"""The interval at which a node checks its load for changes, as `cosine_node.serving.announcing` does."""


def numbered_identity(number: int) -> Identity:
    """Return the identity of the peer with that number, the same in every run."""
    return Identity.from_seed(number.to_bytes(32, "big"))


@dataclass(slots=True, kw_only=True)
class SimulatedMember:
    """A node. `restart` creates another with its identity; `home_use` is that of a verifier's drafter."""

    identity: Identity
    role: Role
    domain: str
    transport: MemoryTransport
    service: VerifierService | DrafterService
    engine: Engine
    curve: CostCurve
    machine: SimulatedMachine
    wire: Wire
    vivaldi: Vivaldi | None
    tasks: tuple[asyncio.Task[None], ...]
    home_use: MachineUse = field(default_factory=MachineUse)
    is_killed: bool = False

    async def kill(self) -> None:
        """Vanish as after `kill -9`."""
        self.is_killed = True
        self.transport.vanish()
        for task in self.tasks:
            task.cancel()


@dataclass(slots=True)
class _ClientSwarm:
    transport: MemoryTransport
    directory: Directory
    codec: TextTokenizer
    mandates: Mandates

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        return self.codec

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        return min(offered)

    async def close(self) -> None:
        await self.transport.close()


@dataclass(slots=True)
class SimulatedHome:
    """A verifier's own drafter; a draft head reads the layers of `target`."""

    engine: Engine
    curve: CostCurve = DRAFT_CURVE
    target: SeenLayers | None = None
    machine: SimulatedMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = SimulatedMachine(self.engine, self.curve)

    def drafter(self) -> HomeDrafter:
        return HomeDrafter(engine=self.engine, runner=self.machine, curve=self.curve, target=self.target)


def _coordinator(
    transport: MemoryTransport, strategy: StrategyKind | None, *, stages: int = 0
) -> RequestCoordinator | None:
    if strategy is None:
        return None
    clock = asyncio.get_running_loop().time
    return RequestCoordinator(transport, strategy=strategy, stages=stages, offload=call_at_once, clock=clock)


class SimulatedSwarm:
    """Use `async with`, inside `run_virtual`. Without a `network`, one delays all writes by `one_way_s`.

    Peers have numbered identities, 1 for the first, unless given. `directory_of` returns each peer's directory; by
    default all share the list `directory`. `gate_of` returns the gate of each peer's streams; by default all are
    open. `emulated` is in every record. With a `place_seed` nodes find their network coordinates.
    """

    def __init__(
        self,
        network: MemoryNetwork | None = None,
        *,
        one_way_s: float = 0.005,
        codec: TextTokenizer | None = None,
        facts: TargetFacts | None = None,
        directory_of: Callable[[Identity], Directory] | None = None,
        gate_of: Callable[[Identity], PeerGate] | None = None,
        emulated: str = "",
        place_seed: int | None = None,
    ) -> None:
        self.network = network or MemoryNetwork(one_way_s=one_way_s)
        self.codec = codec or LetterCodec()
        self.facts = facts or facts_of()
        self._emulated = emulated
        self.directory = MemoryDirectory()
        self._directory_of = directory_of or (lambda identity: self.directory)
        self._gate_of = gate_of or (lambda identity: PeerGate())
        self._place_seed = place_seed
        self._announcements = count(1)
        self.members: list[SimulatedMember] = []
        self._others: list[MemoryTransport] = []
        self._chains: list[RingFinder] = []
        self._stack = AsyncExitStack()
        self._numbers = count(1)

    async def __aenter__(self) -> "SimulatedSwarm":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        for chains in self._chains:
            await chains.close()
        tasks = [task for member in self.members for task in member.tasks]
        for task in tasks:
            task.cancel()
        for transport in [*(member.transport for member in self.members), *self._others]:
            await transport.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def verifier(
        self,
        engine: Engine | None = None,
        *,
        curve: CostCurve = VERIFY_CURVE,
        runner: Runner | None = None,
        identity: Identity | None = None,
        home: SimulatedHome | None = None,
        coordination: StrategyKind | None = STRATEGIES["cosine"],
        policy: Policy | None = None,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        **config: Any,
    ) -> SimulatedMember:
        """Start a verifier, with a drafter of its own if it has a `home`.

        By mandates it coordinates with the strategy `coordination`; with None it declines them. With a `policy` it
        lacks parts. Further options are fields of `VerifierConfig`.
        """
        engine = engine or ScriptedEngine()
        identity = identity or self._next_identity()
        transport, machine = self.join(identity), SimulatedMachine(engine, curve, runner=runner)
        service = verifier_class(policy)(
            ServedEngine(engine=engine, runner=machine, curve=curve, wait_for_work=wait_for_work),
            identity=identity,
            config=self._verifier_config(config),
            home=None if home is None else home.drafter(),
            coordinator=_coordinator(transport, coordination),
        )
        member = await self._add(identity, transport, service, engine, machine, Role.VERIFIER, "target", curve)
        member.home_use = MachineUse() if home is None else home.machine.use
        return member

    async def head(
        self,
        ring: Ring,
        whole: Engine,
        *,
        identity: Identity | None = None,
        home: SimulatedHome | None = None,
        coordination: StrategyKind | None = STRATEGIES["cosine"],
        policy: Policy | None = None,
        **config: Any,
    ) -> SimulatedMember:
        """Start a verifier over stages that hold the model of the engine `whole`; the options are as there."""
        identity = identity or self._next_identity()
        transport = self.join(identity)
        chains = RingFinder(transport, ring, target_digest=self.facts.digest(), whole=whole)
        self._chains.append(chains)
        chain = await chains.chain()
        engine, curve = chain.engine, CostCurve(((1, ring.traversal_s),))
        service = verifier_class(policy)(
            ServedEngine(engine=engine, runner=chain, curve=ring.slowest, speed=PassSpeed(curve, now_s=0.0)),
            identity=identity,
            config=self._verifier_config(config),
            home=None if home is None else home.drafter(),
            coordinator=_coordinator(transport, coordination, stages=len(ring.stages)),
            chain=chain,
        )
        machine = SimulatedMachine(engine, curve, runner=chain)
        member = await self._add(identity, transport, service, engine, machine, Role.VERIFIER, "target", curve)
        member.home_use = MachineUse() if home is None else home.machine.use
        return member

    def _verifier_config(self, changes: Mapping[str, Any]) -> VerifierConfig:
        facts = self.facts
        return VerifierConfig(target_digest=facts.digest(), tokenizer_digest=facts.tokenizer_digest, **changes)

    async def stage(
        self,
        layers: LayerRange,
        whole: Callable[[], Engine],
        *,
        curve: CostCurve,
        more_s: float = 0.0,
        identity: Identity | None = None,
    ) -> SimulatedStage:
        """Start a part of a target; `whole` creates engines of the target, `more_s` is as in `SimulatedStage`."""
        identity = identity or self._next_identity()
        transport = self.join(identity)
        self._others.append(transport)
        digest = self.facts.digest()
        stage = SimulatedStage(transport, layers, whole, curve=curve, more_s=more_s, target_digest=digest)
        await stage.start()
        return stage

    async def drafter(
        self,
        engine: Engine | None = None,
        *,
        curve: CostCurve = DRAFT_CURVE,
        domain: str = "code",
        identity: Identity | None = None,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        **config: Any,
    ) -> SimulatedMember:
        """Start a drafter; `config` has fields of `DrafterConfig`."""
        identity = identity or self._next_identity()
        engine = engine or ScriptedEngine(fidelity=0.7, drafter_seed=len(self.members))
        machine, clock = SimulatedMachine(engine, curve), asyncio.get_running_loop().time
        service = DrafterService(
            ServedEngine(engine=engine, runner=machine, curve=curve, wait_for_work=wait_for_work),
            identity=identity,
            config=DrafterConfig(tokenizer_digest=self.facts.tokenizer_digest, **config),
            clock=clock,
        )
        return await self._add(identity, self.join(identity), service, engine, machine, Role.DRAFTER, domain, curve)

    async def drafter_with(
        self, serve: Callable[[Identity], StreamHandler], *, domain: str = "code", identity: Identity | None = None
    ) -> str:
        """Add a drafter made by the caller, and return its peer id."""
        identity = identity or self._next_identity()
        transport = self.join(identity)
        self._others.append(transport)
        await transport.serve(DRAFT, serve(identity))
        engine = ScriptedEngine()
        await self._announce(identity, Role.DRAFTER, domain, DRAFT_CURVE, engine)
        return identity.peer_id

    async def client(self, *, identity: Identity | None = None, **options: Any) -> AsyncClient:
        """Create a client that stays until the swarm ends; signatures are checked on the event loop.

        Its nonces follow from its identity, so that a run can be repeated, and by default it audits nothing.
        """
        identity = identity or self._next_identity()
        # By default clients do not return, and look-ups take no time.
        own = {
            "target": TARGET,
            "audit": 0.0,
            "strategies": ALL_STRATEGIES,
            "patience_s": 0.0,
            "reuse_finds_s": 0.0,
        }
        chosen: dict[str, Any] = own | options

        async def join() -> Swarm:
            return self.client_swarm(identity)

        client = AsyncClient(
            join=join,
            offload=call_at_once,
            nonces=numbered_nonces(identity.peer_id),
            audit_chance=random.Random(identity.peer_id).random,
            **chosen,
        )
        return await self._stack.enter_async_context(client)

    def client_swarm(self, identity: Identity) -> Swarm:
        """Return a client's place in the swarm; the caller closes it."""
        mandates = Mandates(identity, asyncio.get_running_loop().time)
        return _ClientSwarm(self.join(identity), self._directory_of(identity), self.codec, mandates)

    def join(self, identity: Identity) -> MemoryTransport:
        """Return a transport of the swarm's network for a peer."""
        return self.network.join(identity.peer_id, self._gate_of(identity))

    async def keep_announced(self) -> None:
        """Announce living members repeatedly, soon after load changes, and long before their records lapse."""
        announced = {id(member): 0 for member in self.members}
        for turn in count(1):
            await asyncio.sleep(ANNOUNCE_S)
            is_due = turn % int(LIFETIME_S / 2 / ANNOUNCE_S) == 0
            for member in [member for member in self.members if not member.is_killed]:
                load = member.service.requests
                if is_due or announced.get(id(member)) != load:
                    announced[id(member)] = load
                    await self._announce_member(member)

    async def announce_members(self) -> None:
        """Announce all living members in their present state."""
        for member in [member for member in self.members if not member.is_killed]:
            await self._announce_member(member)

    async def _announce_member(self, member: SimulatedMember) -> None:
        await self._announce(
            member.identity,
            member.role,
            member.domain,
            member.curve,
            member.engine,
            load_requests=member.service.requests,
            coordinate=member.vivaldi.coordinate if member.vivaldi else None,
            stages=stages_of(member.service),
        )

    async def leave_clients(self) -> None:
        """Close every client."""
        await self._stack.aclose()

    def _next_identity(self) -> Identity:
        return numbered_identity(next(self._numbers))

    async def _add(
        self,
        identity: Identity,
        transport: MemoryTransport,
        service: VerifierService | DrafterService,
        engine: Engine,
        machine: SimulatedMachine,
        role: Role,
        domain: str,
        curve: CostCurve,
    ) -> SimulatedMember:
        watched = WatchedTransport(transport)
        await service.start(watched)
        works = [service.run()]
        vivaldi = None
        if self._place_seed is not None:
            rng = seeded(self._place_seed, "place", identity.peer_id)
            vivaldi = Vivaldi(rng.random)
            directory = self._directory_of(identity)
            works.append(Surroundings(transport, directory, vivaldi, rng=rng).run(TARGET))
        status = StatusService(lambda: (b"", service.requests, machine.use.passes), vivaldi=vivaldi)
        await transport.serve(STATUS, status.handle)
        member = SimulatedMember(
            identity=identity,
            role=role,
            domain=domain,
            transport=transport,
            service=service,
            engine=engine,
            curve=curve,
            machine=machine,
            wire=watched.wire,
            vivaldi=vivaldi,
            tasks=tuple(map(asyncio.ensure_future, works)),
        )
        self.members.append(member)
        await self._announce(identity, role, domain, curve, engine, stages=stages_of(service))
        return member

    async def _announce(
        self,
        identity: Identity,
        role: Role,
        domain: str,
        curve: CostCurve,
        engine: Engine,
        *,
        load_requests: int = 0,
        coordinate: NetworkCoordinate | None = None,
        stages: tuple[str, ...] = (),
    ) -> None:
        facts = self.facts
        record = replace(
            RECORD,
            peer_id=identity.peer_id,
            role=role,
            numerics=engine.numerics,
            expertise=(domain,),
            load_requests=load_requests,
            pass_us=round(1e6 * curve.seconds(1)),
            context_tokens=engine.context_tokens,
            target_digest=facts.digest(),
            tokenizer_digest=facts.tokenizer_digest,
            eos=facts.eos,
            emulated=self._emulated,
            generation_defaults=facts.generation_defaults if role is Role.VERIFIER else None,
            sequence=next(self._announcements),
            issued_at_s=asyncio.get_running_loop().time(),
            coordinate=coordinate,
            stages=stages or None,
            addresses=tuple(filter(None, [self.network.addresses.get(identity.peer_id)])),
        )
        await self._directory_of(identity).announce(record, [TARGET])


def stages_of(service: VerifierService | DrafterService) -> tuple[str, ...]:
    """Return the peer ids of those that compute for a verifier."""
    return service.stages if isinstance(service, VerifierService) else ()


def numbered_nonces(peer_id: str) -> Callable[[], bytes]:
    """Return a source of nonces that gives the same ones in every run."""
    numbers = count()
    return lambda: blake2b(f"{peer_id} {next(numbers)}".encode(), digest_size=NONCE_BYTES).digest()
