"""Volunteer nodes from start to end: model, network, service, announcements, an orderly stop."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosine_node.drafter.receipt_ledger import ledger_of
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.models.model import MEASURE_S, WARM_UP_S, Emit, ServedModel, load_served
from cosine_node.passes.emulation import Emulation
from cosine_node.passes.idle_passes import IdlePasses, WaitForWork
from cosine_node.passes.runner import PacedRunner, PassSpeed, Runner, ThreadRunner, TimedRunner
from cosine_node.serving.announced_node import AnnouncedNode, cell_reader, joining_fields, ready_fields
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.node_options import NetworkOptions, NodeOptions
from cosine_node.serving.work import Work, work_of
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.service import VerifierConfig, VerifierService
from cosine_p2p.storage.identity_file import claim_identity
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.channel import AGENT
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import AUDIT, DISCOVER, DRAFT, VERIFY
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from cosine_node.learning.learner import Learner
    from cosine_node.metrics.node import ObservedNode
    from cosine_node.stages.chain_runner import ChainRunner

Service = VerifierService | DrafterService


async def run_bootstrap(network: NetworkOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a node that only keeps the DHT and relays, until `stop` is set."""
    claimed = claim_identity(network.identity_file)
    gate = network.access.gate(claimed.identity.peer_id)
    emit("joining", joining_fields(network))
    transport = await HivemindTransport.start(network.transport_config(claimed.file, gate, is_relay=True))
    try:
        await transport.serve(DISCOVER, DiscoverService(cell_reader(transport)).handle)
        emit("ready", await ready_fields(transport, "bootstrap"))
        await stop.wait()
    finally:
        await transport.close()
        claimed.release()


async def run_nodes(
    network: NetworkOptions, options: Sequence[NodeOptions], emit: Emit, stop: asyncio.Event
) -> None:
    """Run a verifier or some drafters in this process until `stop` is set; then they drain and say goodbye.

    Each has an identity, a transport, a record and an engine loop of its own. None is announced before all are
    loaded; an error of one sets `stop`, so that the others drain, and is raised. Raises `UsageError` for a model,
    identity or address that cannot be used and `PeerLost` for initial peers that do not answer.
    """
    async with AsyncExitStack() as stack:
        claims = []
        for file in identity_files(network.identity_file, len(options)):
            claims.append(claim_identity(file))
            stack.callback(claims[-1].release)
        gates = [network.access.gate(claimed.identity.peer_id) for claimed in claims]
        served = []
        homes: list[ServedModel | None] = []
        learners: list[Learner | None] = []
        for claimed, each in zip(claims, options, strict=True):
            try:
                measure_s = MEASURE_S if each.emulation is None else WARM_UP_S
                load = partial(load_served, emit=emit, measure_s=measure_s)
                # The verifier's own drafter first: the target's KV pool takes what memory is left.
                homes.append(await asyncio.to_thread(load, each.home, Role.DRAFTER) if each.home else None)
                served.append(await asyncio.to_thread(load, each.source, each.role))
                learners.append(await _learner(served[-1], each, claimed.identity))
            except UsageError as error:
                if len(options) == 1:
                    raise
                raise UsageError(f"{each.source.model} cannot be served: {error}") from error
        if stop.is_set():
            return
        nodes = []
        parts = zip(claims, gates, served, homes, learners, options, strict=True)
        for claimed, gate, one, home, learner, each in parts:
            emit("joining", joining_fields(network))
            transport = await HivemindTransport.start(network.transport_config(claimed.file, gate))
            stack.push_async_callback(transport.close)
            identity = claimed.identity
            nodes.append(RunningNode(transport, identity, one, network, each, home=home, learner=learner))
            # Nodes that begin a network begin the same one.
            network = replace(network, initial_peers=network.initial_peers or await transport.visible_maddrs())
        stack.enter_context(observing(network, nodes))
        await together([node.live(emit, stop) for node in nodes], stop)


def identity_files(first: Path | None, count: int) -> list[Path | None]:
    """Key files of the nodes of a process: FILE, FILE-2, ..., or any default ones that are free."""
    if first is None:
        return [None] * count
    return [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, count + 1))]


async def together(works: Sequence[Awaitable[None]], stop: asyncio.Event) -> None:
    """Run all until they end; the first to fail sets `stop`, and its error is raised once the others have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.wait(tasks)
        for task in (*first, *tasks):
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RunningNode(AnnouncedNode):
    """A drafter or verifier that runs: its service, its engine loop and its record."""

    service: Service

    def __init__(
        self,
        transport: HivemindTransport,
        identity: Identity,
        served: ServedModel,
        network: NetworkOptions,
        options: NodeOptions,
        *,
        home: ServedModel | None = None,
        chain: "ChainRunner | None" = None,
        learner: "Learner | None" = None,
    ) -> None:
        """A `chain` has a curve of its own, that of a pass all the way round, and a `learner` an engine."""
        if learner is not None:
            served = replace(served, engine=learner.engine, model_name=learner.model_name)
        curve = options.emulation.curve(options.role) if options.emulation else served.curve
        speed = PassSpeed(curve, now_s=time.monotonic())
        super().__init__(
            transport,
            identity,
            network,
            role=options.role,
            model_name=served.model_name,
            target_name=served.target_name,
            facts=served.facts,
            tokenizer_folder=served.tokenizer_folder,
            speed=speed,
        )
        self._served = served
        self._options = options
        self._learner = learner
        self._expertise = options.expertise if learner is None else learner.expertise
        # An emulated device is as fast as its name says.
        self._runner: Runner
        wait_for_work: WaitForWork
        if options.emulation:
            self._runner, wait_for_work = PacedRunner(ThreadRunner(served.engine), curve), asyncio.Event.wait
        elif chain is not None:
            self._runner, wait_for_work = chain, asyncio.Event.wait
            chain.note_pass = lambda tokens, seconds: speed.note(tokens=tokens, elapsed_s=seconds)
        else:
            self._runner = TimedRunner(ThreadRunner(served.engine), speed)
            wait_for_work = IdlePasses(served.engine, self._runner, speed).wait
        self._home = _home_drafter(home, options.emulation) if home else None
        # Passes over a chain follow each other as fast as its slowest stage takes them.
        pass_curve = curve if chain is None else chain.pace.slowest
        if options.role is Role.VERIFIER:
            make = partial(_verifier, served, options, transport, home=self._home, chain=chain)
        else:
            make = partial(_drafter, served, options, self._expertise, learner)
        self.service = make(
            engine=served.engine,
            runner=self._runner,
            curve=pass_curve,
            identity=identity,
            wait_for_work=wait_for_work,
        )
        if learner is not None and isinstance(self.service, DrafterService):
            learner.attach(self.service, self._weights_switched)
        self.service.pass_s = speed.pass_s

    def _handlers(self) -> dict[str, StreamHandler]:
        if isinstance(self.service, VerifierService):
            return {VERIFY: self.service.handle, AUDIT: self.service.audits.handle}
        return {DRAFT: self.service.handle}

    def _beside(self, emit: Emit) -> Sequence[Awaitable[None]]:
        return () if self._learner is None else (self._learner.run(emit),)

    def _weights_switched(self) -> None:
        """Announce the learned weights that serve from here on."""
        assert self._learner is not None and isinstance(self.service, DrafterService)
        self._model_name, self._expertise = self._learner.model_name, self._learner.expertise
        if self.service.receipts is not None:
            self.service.receipts.announce(self._expertise)
        self._announcer.changed()

    def _one_way_s(self) -> float:
        return self._options.emulation.one_way_s if self._options.emulation else 0.0

    def _end(self) -> None:
        self._runner.close()
        if self._learner is not None:
            self._learner.close()
        if self._home is not None:
            self._home.close()

    def _summary(self) -> dict[str, object]:
        fields = super()._summary()
        if isinstance(self._runner, PacedRunner):
            fields |= {"late_passes": self._runner.late_passes, "emulated": self._record_emulation()}
        return fields

    def _work_done(self) -> Work:
        return work_of(self.service)

    def _work_fields(self, work: Work) -> dict[str, object]:
        names = {"peer_id": self._transport.peer_id, "model": self._model_name}
        return names | asdict(work) | {"said": str(work)}

    def observed(self) -> "ObservedNode":
        """The node as its metrics see it."""
        from cosine_node.metrics.node import ObservedNode

        served = self._served
        return ObservedNode(
            role=self._options.role,
            model_name=served.model_name,
            peer_id=self._transport.peer_id,
            target=served.target_name,
            numerics=served.engine.numerics,
            version=AGENT,
            max_requests=self._options.max_requests,
            service=self.service,
            engine=served.engine,
            network=self._transport,
            directory=self._directory,
            learner=self._learner,
        )

    def _record_fields(self) -> dict[str, Any]:
        return {
            "numerics": self._served.engine.numerics,
            "expertise": self._expertise,
            "learns": True if self._learner is not None else None,
            "capacity_requests": self._options.max_requests,
            "context_tokens": self._served.engine.context_tokens,
            "emulated": self._record_emulation(),
        }

    def _record_emulation(self) -> str:
        return self._options.emulation.name if self._options.emulation else ""


@contextmanager
def observing(network: NetworkOptions, nodes: Sequence[RunningNode]) -> Iterator[None]:
    """Serve the metrics of nodes meanwhile, if they are asked for."""
    if network.metrics_port is None:
        yield
        return
    from cosine_node.metrics.node import node_registry, serving_metrics

    registry = node_registry([node.observed() for node in nodes])
    with serving_metrics(registry, host=network.metrics_host, port=network.metrics_port):
        yield


def _home_drafter(served: ServedModel, emulation: Emulation | None) -> HomeDrafter:
    """The drafter that a verifier holds itself, as fast as it is or, emulated, as its profile says."""
    runner: Runner = ThreadRunner(served.engine)
    if emulation is None:
        return HomeDrafter(engine=served.engine, runner=runner, curve=served.curve)
    curve = emulation.curve(Role.DRAFTER)
    return HomeDrafter(engine=served.engine, runner=PacedRunner(runner, curve), curve=curve)


async def _learner(served: ServedModel, options: NodeOptions, identity: Identity) -> "Learner | None":
    """The learner of a drafter that is to learn. Raises `UsageError` for one that cannot."""
    if options.learn_bytes is None:
        return None
    from cosine_node.serving.learner import learner_of

    return await asyncio.to_thread(learner_of, served, options, peer_id=identity.peer_id)


def _verifier(
    served: ServedModel,
    options: NodeOptions,
    transport: HivemindTransport,
    *,
    home: HomeDrafter | None,
    chain: "ChainRunner | None",
    **shared: Any,
) -> Service:
    config = VerifierConfig(
        target_digest=served.facts.digest(),
        tokenizer_digest=served.facts.tokenizer_digest,
        max_requests=options.max_requests,
        shares_prefixes=options.shares_prefixes,
    )
    coordinator = None
    if options.max_coordinated:
        coordinator = RequestCoordinator(transport, most_requests=options.max_coordinated)
    return VerifierService(config=config, home=home, coordinator=coordinator, chain=chain, **shared)


def _drafter(
    served: ServedModel,
    options: NodeOptions,
    expertise: tuple[str, ...],
    learner: "Learner | None",
    *,
    identity: Identity,
    **shared: Any,
) -> Service:
    config = DrafterConfig(tokenizer_digest=served.facts.tokenizer_digest, max_requests=options.max_requests)
    return DrafterService(
        config=config,
        receipts=ledger_of(identity.peer_id, expertise),
        observer=learner.records if learner is not None else None,
        identity=identity,
        **shared,
    )
