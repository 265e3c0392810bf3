"""Volunteer nodes from start to end: model, network, service, announcements, an orderly stop."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_node.announcing import Announcer
from cosine_node.discover_service import DiscoverService
from cosine_node.drafter.receipt_ledger import ledger_of
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.emulation import Emulation
from cosine_node.engine.curve import CostCurve
from cosine_node.idle_passes import IdlePasses, WaitForWork
from cosine_node.model import MEASURE_S, WARM_UP_S, Emit, ServedModel, load_served
from cosine_node.node_options import NetworkOptions, NodeOptions
from cosine_node.pass_speed import PassSpeed
from cosine_node.recent_cells import ReadCell
from cosine_node.runner import PacedRunner, Runner, ThreadRunner, TimedRunner
from cosine_node.status_service import StatusService
from cosine_node.surroundings import Surroundings
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.service import VerifierConfig, VerifierService
from cosine_node.work import Work, work_of
from cosine_p2p.channel import AGENT
from cosine_p2p.dht import DhtDirectory
from cosine_p2p.identity_file import claim_identity
from cosine_p2p.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.delay import delayed
from cosine_p2p.transport.hivemind import HivemindTransport
from cosine_p2p.vivaldi import Vivaldi
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import AUDIT, DISCOVER, DRAFT, STATUS, VERIFY
from cosine_protocol.records import SCHEMA, NodeRecord, Role

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedNode

LOG = logging.getLogger(__name__)

LOAD_CHECK_S: Final = 5.0
"""The announcer changes a record no more often."""

DRAIN_S: Final = 20.0
"""A choice: most generations end in this time; the others go on at another node, where clients keep their text."""

TELL_WORK_EVERY_S: Final = 60.0
"""A choice: a volunteer who looks now and then sees that something happens."""

FAREWELL_S: Final = 0.5
"""A choice: longer than the last messages take to leave."""


Service = VerifierService | DrafterService


async def run_bootstrap(network: NetworkOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a node that only keeps the DHT and relays, until `stop` is set."""
    claimed = claim_identity(network.identity_file)
    gate = network.access.gate(claimed.identity.peer_id)
    emit("joining", _joining_fields(network))
    transport = await HivemindTransport.start(network.transport_config(claimed.file, gate, is_relay=True))
    try:
        await transport.serve(DISCOVER, DiscoverService(_cell_reader(transport)).handle)
        emit("ready", await _ready_fields(transport, "bootstrap"))
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
        for each in options:
            try:
                measure_s = MEASURE_S if each.emulation is None else WARM_UP_S
                load = partial(load_served, emit=emit, measure_s=measure_s)
                # The verifier's own drafter first: the target's KV pool takes what memory is left.
                homes.append(await asyncio.to_thread(load, each.home, Role.DRAFTER) if each.home else None)
                served.append(await asyncio.to_thread(load, each.source, each.role))
            except UsageError as error:
                if len(options) == 1:
                    raise
                raise UsageError(f"{each.source.model} cannot be served: {error}") from error
        if stop.is_set():
            return
        nodes = []
        for claimed, gate, one, home, each in zip(claims, gates, served, homes, options, strict=True):
            emit("joining", _joining_fields(network))
            transport = await HivemindTransport.start(network.transport_config(claimed.file, gate))
            stack.push_async_callback(transport.close)
            nodes.append(RunningNode(transport, claimed.identity, one, network, each, home=home))
            # Nodes that begin a network begin the same one.
            network = replace(network, initial_peers=network.initial_peers or await transport.visible_maddrs())
        if network.metrics_port is not None:
            from cosine_node.metrics.node import node_registry
            from cosine_node.metrics.server import serving_metrics

            registry = node_registry([node.observed() for node in nodes])
            stack.enter_context(serving_metrics(registry, host=network.metrics_host, port=network.metrics_port))
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


def _joining_fields(network: NetworkOptions) -> dict[str, object]:
    return {"network": network.access.network, "initial_peers": list(network.initial_peers)}


async def _ready_fields(transport: HivemindTransport, role: str) -> dict[str, object]:
    return {"peer_id": transport.peer_id, "role": role, "maddrs": list(await transport.visible_maddrs())}


def _cell_reader(transport: HivemindTransport) -> ReadCell:
    async def read(cell: str) -> Sequence[bytes]:
        return list((await transport.read([cell])).get(cell, {}).values())

    return read


class RunningNode:
    """A node that runs: its service, its engine loop and its record."""

    def __init__(
        self,
        transport: HivemindTransport,
        identity: Identity,
        served: ServedModel,
        network: NetworkOptions,
        options: NodeOptions,
        *,
        home: ServedModel | None = None,
    ) -> None:
        self._transport = transport
        self._served = served
        self._options = options
        self._addresses: tuple[str, ...] = ()
        self._network_name = network.access.network
        self._is_alone = not network.initial_peers
        curve = options.emulation.curve(options.role) if options.emulation else served.curve
        self._speed = PassSpeed(curve, now_s=time.monotonic())
        # An emulated device is as fast as its name says.
        self._runner: Runner
        wait_for_work: WaitForWork
        if options.emulation:
            self._runner, wait_for_work = PacedRunner(ThreadRunner(served.engine), curve), asyncio.Event.wait
        else:
            self._runner = TimedRunner(ThreadRunner(served.engine), self._speed)
            wait_for_work = IdlePasses(served.engine, self._runner, self._speed).wait
        self._home = _home_drafter(home, options.emulation) if home else None
        coordinator = None
        if options.role is Role.VERIFIER and options.max_coordinated:
            coordinator = RequestCoordinator(transport, most_requests=options.max_coordinated)
        self.service = _service(
            served, options, self._runner, curve, identity, wait_for_work, self._home, coordinator
        )
        self._gate = transport.config.gate
        self._directory = DhtDirectory(
            transport,
            identity,
            network=network.access.network,
            opener=transport.opener,
            membership=self._gate.membership,
        )
        self._vivaldi = Vivaldi(random.random)
        self._surroundings = Surroundings(
            transport, self._directory, self._vivaldi, target=served.target_name, rng=random.Random()
        )
        self._announcer = Announcer(self._directory, identity, self._describe, served.names)
        transport.on_restart(self._announcer.restarted)

    async def live(self, emit: Emit, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and everything begun is finished.

        The node answers streams and is in the directory before anybody is told that it is ready.
        """
        emit("announcing", {"target": self._served.target_name})
        files = TokenizerFiles.read(self._served.tokenizer_folder)
        handlers: dict[str, StreamHandler] = {
            VERIFY if self._options.role is Role.VERIFIER else DRAFT: self.service.handle,
            DISCOVER: DiscoverService(_cell_reader(self._transport), files).handle,
            STATUS: StatusService(self._describe_status, vivaldi=self._vivaldi).handle,
        }
        if isinstance(self.service, VerifierService):
            handlers[AUDIT] = self.service.audits.handle
        one_way_s = self._options.emulation.one_way_s if self._options.emulation else 0.0
        for protocol, handler in handlers.items():
            await self._transport.serve(protocol, delayed(handler, one_way_s=one_way_s))
        self._addresses = await self._transport.visible_maddrs()
        # A record that nobody took is offered again later.
        await self._announcer.announce()
        emit("announced", self._announced_fields())
        ready = await _ready_fields(self._transport, self._options.role)
        emit("ready", ready | {"model": self._served.model_name})
        if self._is_alone:
            emit("alone", {"network": self._network_name})
        await self._work(emit, stop)
        emit("stopped", self._summary())

    async def _work(self, emit: Emit, stop: asyncio.Event) -> None:
        """Run the service's loop and the announcements until `stop`; an error of the loop ends the node."""
        beside = (self._surroundings.run(), self._watch(emit), self._tell_work(emit))
        works = (self.service.run(), self._announcer.run(), *beside)
        loops = [asyncio.ensure_future(work) for work in works]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._say_goodbye(loops[1])
            for task in done - {stopping}:
                task.result()
        finally:
            for task in (*loops, stopping):
                task.cancel()
            await asyncio.gather(*loops, stopping, return_exceptions=True)
            self._runner.close()
            if self._home is not None:
                self._home.close()

    def _announced_fields(self) -> dict[str, object]:
        return {"target": self._served.target_name, "stored": bool(self._announcer.is_stored)}

    def _summary(self) -> dict[str, object]:
        """The fields of the node's last event."""
        fields = self._work_fields(work_of(self.service)) | {"passes": self.service.progress.steps}
        if isinstance(self._runner, PacedRunner):
            fields |= {"late_passes": self._runner.late_passes, "emulated": self._record_emulation()}
        return fields

    async def _tell_work(self, emit: Emit) -> None:
        """Tell now and then what the node has done since it told last, if anything."""
        told = work_of(self.service)
        while True:
            await asyncio.sleep(TELL_WORK_EVERY_S)
            done = work_of(self.service)
            if done != told:
                emit("worked", self._work_fields(done.since(told)))
                told = done

    def _work_fields(self, work: Work) -> dict[str, object]:
        names = {"peer_id": self._transport.peer_id, "model": self._served.model_name}
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
        )

    async def _say_goodbye(self, announcing: "asyncio.Future[None]") -> None:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        await self._announcer.stop()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.service.drain()
            # The last messages still have to leave.
            await asyncio.sleep(FAREWELL_S)
        except TimeoutError:
            LOG.warning("requests were still running after %g s; they will go on elsewhere", DRAIN_S)

    async def _watch(self, emit: Emit) -> None:
        """Announce a changed load, address or speed soon, and tell when the node is found or not found any more."""
        told = self._announced_fields()
        while True:
            await asyncio.sleep(LOAD_CHECK_S)
            if self._announced_fields() != told:
                told = self._announced_fields()
                emit("announced", told)
            if self._speed.refresh(time.monotonic()):
                LOG.info("a pass over one token takes %.1f ms now", 1e3 * self._speed.pass_s)
                self.service.pass_s = self._speed.pass_s
            self._addresses = await self._transport.visible_maddrs()
            self._announcer.changed()

    def _describe(self) -> NodeRecord:
        served = self._served
        return NodeRecord(
            schema=SCHEMA,
            peer_id=self._transport.peer_id,
            role=self._options.role,
            target=served.target_name,
            target_digest=served.facts.digest(),
            content_digest=served.facts.content_digest,
            tokenizer_digest=served.facts.tokenizer_digest,
            numerics=served.engine.numerics,
            model=served.model_name,
            expertise=self._options.expertise,
            capacity_requests=self._options.max_requests,
            load_requests=self.service.requests,
            pass_us=round(1e6 * self._speed.pass_s),
            context_tokens=served.engine.context_tokens,
            eos=served.facts.eos,
            addresses=self._addresses[:16],
            software=AGENT,
            emulated=self._record_emulation(),
            sequence=0,
            issued_at_s=0.0,
            lifetime_s=0.0,
            generation_defaults=served.facts.generation_defaults,
            certificate=self._gate.certificate or None,
            coordinate=self._vivaldi.coordinate,
        )

    def _record_emulation(self) -> str:
        return self._options.emulation.name if self._options.emulation else ""

    def _describe_status(self) -> tuple[bytes, int, int]:
        return self._announcer.latest or b"", self.service.requests, self.service.progress.steps


def _home_drafter(served: ServedModel, emulation: Emulation | None) -> HomeDrafter:
    """The drafter that a verifier holds itself, as fast as it is or, emulated, as its profile says."""
    runner: Runner = ThreadRunner(served.engine)
    if emulation is None:
        return HomeDrafter(engine=served.engine, runner=runner, curve=served.curve)
    curve = emulation.curve(Role.DRAFTER)
    return HomeDrafter(engine=served.engine, runner=PacedRunner(runner, curve), curve=curve)


def _service(
    served: ServedModel,
    options: NodeOptions,
    runner: Runner,
    curve: CostCurve,
    identity: Identity,
    wait_for_work: WaitForWork,
    home: HomeDrafter | None,
    coordinator: RequestCoordinator | None,
) -> Service:
    make: Callable[..., Service]
    if options.role is Role.VERIFIER:
        verifier = VerifierConfig(
            target_digest=served.facts.digest(),
            tokenizer_digest=served.facts.tokenizer_digest,
            max_requests=options.max_requests,
            shares_prefixes=options.shares_prefixes,
        )
        make = partial(VerifierService, config=verifier, home=home, coordinator=coordinator)
    else:
        drafter = DrafterConfig(tokenizer_digest=served.facts.tokenizer_digest, max_requests=options.max_requests)
        make = partial(DrafterService, config=drafter, receipts=ledger_of(identity.peer_id, options.expertise))
    return make(engine=served.engine, runner=runner, curve=curve, identity=identity, wait_for_work=wait_for_work)
