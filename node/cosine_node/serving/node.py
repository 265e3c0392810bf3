"""Verifiers, drafters and bootstrap nodes: load the model, join the network, serve, and drain."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosine_engine.base import Engine
from cosine_engine.models.home_model import HomeModel, load_with_home
from cosine_engine.models.served import MEASURE_S, WARM_UP_S, ServedModel, load_served
from cosine_engine.models.unloading import ModelMemory, WaitForWork
from cosine_engine.openai.engine import ServerEngine
from cosine_engine.paged import PagedEngine
from cosine_node.chains.chain import StageChain
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.passes.idle_passes import IdlePasses
from cosine_node.passes.runner import PacedRunner, PassSpeed, Runner, ThreadRunner, TimedRunner, in_ending_thread
from cosine_node.serving.announced_node import AnnouncedNode, JoinedNetwork, claim, join, observing
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.fetched_model import sharing
from cosine_node.serving.node_options import NetworkOptions, NodeOptions
from cosine_node.serving.work import DraftWork, VerifyWork
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.service import VerifierService
from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.audit import AUDIT
from cosine_protocol.discover import DISCOVER
from cosine_protocol.draft import DRAFT
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_protocol.verify import VERIFY
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedNode


async def run_bootstrap(network: NetworkOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a node that only stores the DHT and relays connections, until `stop` is set."""
    async with AsyncExitStack() as stack:
        claimed, gate = claim(network, network.identity_file, stack)
        joined = await join(network, claimed, gate, emit, stack, stop, is_relay=True)
        if joined is None:
            return
        discover = DiscoverService(joined.read_cell, held_in=joined.held_in)
        await joined.transport.serve(DISCOVER, discover.handle)
        joined.be_found()
        emit("ready", await joined.ready_fields("bootstrap"))
        await stop.wait()


async def run_nodes(
    network: NetworkOptions, options: Sequence[NodeOptions], emit: Emit, stop: asyncio.Event
) -> None:
    """Run a verifier or several drafters in this process until `stop` is set; then they drain.

    Each has its own identity, transport, record and engine loop. All are loaded before any is announced. An error
    of one sets `stop`, so that the others drain, and is raised. Raises `UsageError` for an unusable model, identity
    or address, and `PeerLost` if initial peers do not answer.
    """
    async with AsyncExitStack() as stack:
        places = [claim(network, file, stack) for file in identity_files(network.identity_file, len(options))]
        loaded = []
        for each in options:
            try:
                began_s = time.monotonic()
                served, home = await in_ending_thread(load_models, each, emit)
                if each.unload_after_s is not None:
                    served, home = returnable(each, served, home, emit, load_s=time.monotonic() - began_s)
                loaded.append((served, home))
            except UsageError as error:
                if len(options) == 1:
                    raise
                raise UsageError(f"{each.source.model} cannot be served: {error}") from error
        if stop.is_set():
            return
        nodes: list[RunningNode] = []
        for (claimed, gate), each, (served, home) in zip(places, options, loaded, strict=True):
            joined = await join(network, claimed, gate, emit, stack, stop)
            if joined is None:
                return
            if each.role is Role.VERIFIER:
                node = VerifierNode(joined, served, each, home=home)
                if each.shares_weights:
                    node.weights = await sharing(served.names.folder)
                nodes.append(node)
            else:
                nodes.append(DrafterNode(joined, served, each))
            # Without initial peers, all nodes join the network of the first.
            peers = network.initial_peers or await joined.transport.visible_maddrs()
            network = replace(network, initial_peers=peers)
        stack.enter_context(observing(network, nodes))
        await together([node.live(emit, stop) for node in nodes], stop)


def load_models(
    options: NodeOptions, emit: Emit, *, measure_s: float | None = None
) -> tuple[ServedModel, HomeModel | None]:
    """Load and measure a node's model, and that of a verifier's own drafter. Blocks. Raises `UsageError`."""
    if measure_s is None:
        measure_s = MEASURE_S if options.emulated_device is None else WARM_UP_S
    if options.home is None:
        return load_served(options.source, options.role, emit, measure_s=measure_s), None
    return load_with_home(options.source, options.home, emit, measure_s=measure_s)


def returnable(
    options: NodeOptions, served: ServedModel, home: HomeModel | None, emit: Emit, *, load_s: float
) -> tuple[ServedModel, HomeModel | None]:
    """Return the models with engines whose memory can be given back. The first load took `load_s`."""
    names, after_s = served.names, options.unload_after_s
    assert after_s is not None

    async def load_again() -> list[Engine]:
        # The speed is known.
        again, home_again = await in_ending_thread(load_models, options, emit, measure_s=WARM_UP_S)
        if again.names != names:
            raise UsageError("its files have changed")
        return [again.engine] if home_again is None else [again.engine, home_again.engine]

    share_grammars(served, home)
    engines = [served.engine] if home is None else [served.engine, home.engine]
    memory = ModelMemory(engines, load_again, model=names.model_name, load_s=load_s, after_s=after_s, emit=emit)
    engine = memory.engines[0]
    if home is not None:
        home = replace(home, engine=memory.engines[1], target=None if home.target is None else engine)
    return replace(served, engine=engine, memory=memory), home


def share_grammars(served: ServedModel, home: HomeModel | None) -> None:
    """Let a verifier's own drafter use the target's grammars if it has the same tokens."""
    if home is not None and isinstance(home.engine, PagedEngine) and (home.engine.grammars or home.target):
        home.engine.grammars = served.engine.grammars


def identity_files(first: Path | None, count: int) -> list[Path | None]:
    """Return the key files of the nodes of a process: FILE, FILE-2, ..., or None for free default ones."""
    if first is None:
        return [None] * count
    return [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, count + 1))]


async def together(works: Sequence[Awaitable[None]], stop: asyncio.Event) -> None:
    """Run all works; the first failure sets `stop`, and is raised after all have ended."""
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
    """The common part of verifiers and drafters: the engine loop and the record. Subclasses make the service."""

    service: VerifierService | DrafterService

    def __init__(
        self,
        joined: JoinedNetwork,
        served: ServedModel,
        options: NodeOptions,
        *,
        chain: StageChain | None = None,
    ) -> None:
        """A `chain` has its own cost curve, of passes over the whole chain."""
        device = options.emulated_device
        curve = (device.curve(options.role) if device else served.curve).at_share(options.share)
        speed = PassSpeed(curve, now_s=time.monotonic())
        super().__init__(joined, role=options.role, names=served.names, speed=speed, emulation=options.emulation)
        self._served = served
        self._options = options
        self._engine_thread = ThreadRunner(served.engine, share=options.share)
        self._runner: Runner = self._engine_thread if chain is None else chain
        self._wait_while_loaded: WaitForWork = asyncio.Event.wait
        # The slowest stage limits the rate of passes over a chain.
        self._pass_curve = curve if chain is None else chain.pace.slowest
        if device:
            self._runner = PacedRunner(self._engine_thread, curve)
        elif not isinstance(served.engine, ServerEngine):
            # The passes of a server's engine wait for the server, so their times do not tell its pace.
            self._runner = TimedRunner(self._runner, speed)
            self._wait_while_loaded = IdlePasses(served.engine, self._runner, speed).wait

    async def _wait_for_work(self, work: asyncio.Event) -> None:
        if (memory := self._served.memory) is None:
            await self._wait_while_loaded(work)
        else:
            await memory.wait(work, idle=self._wait_while_loaded, progress=self.service.progress)

    @property
    def _until_loaded_s(self) -> float:
        return 0.0 if self._served.memory is None else self._served.memory.until_loaded_s

    def _end(self) -> None:
        self._runner.close()

    def _summary(self) -> dict[str, object]:
        fields = super()._summary()
        if isinstance(self._runner, PacedRunner):
            emulated = self._emulation.name if self._emulation else ""
            fields |= {"late_passes": self._runner.late_passes, "emulated": emulated}
        return fields

    def observed(self) -> "ObservedNode":
        from cosine_node.metrics.node import ObservedNode

        engine = self._served.engine
        return ObservedNode(
            max_requests=self._options.max_requests,
            service=self.service,
            engine=engine,
            **self._observed_fields(numerics=engine.numerics),
        )

    def _record_fields(self) -> dict[str, Any]:
        return {
            "numerics": self._served.engine.numerics,
            "expertise": self._options.expertise,
            "capacity_requests": self._options.max_requests,
            "context_tokens": self._served.engine.context_tokens,
        }


class VerifierNode(RunningNode):
    """A verifier, optionally with its own drafter or over a chain of stages."""

    service: VerifierService

    def __init__(
        self,
        joined: JoinedNetwork,
        served: ServedModel,
        options: NodeOptions,
        *,
        home: HomeModel | None = None,
        chain: StageChain | None = None,
    ) -> None:
        super().__init__(joined, served, options, chain=chain)
        self._home: HomeDrafter | None = None
        share_grammars(served, home)
        if home is not None:
            # Over stages it drafts all the time, and messages must not wait for it.
            beside = self._engine_thread if chain is None else None
            share = options.share
            runner: Runner = ThreadRunner(home.engine, beside=beside, gives_way=chain is not None, share=share)
            curve = home.curve.at_share(share)
            if options.emulation is not None and options.emulation.has_device:
                curve = options.emulation.curve(Role.DRAFTER)
                runner = PacedRunner(runner, curve)
            self._home = HomeDrafter(engine=home.engine, runner=runner, curve=curve, target=home.target)
        coordinator = None
        if options.max_coordinated:
            coordinator = RequestCoordinator(
                joined.transport,
                most_requests=options.max_coordinated,
                stages=0 if chain is None else len(chain.stages),
            )
        self.service = VerifierService(
            config=VerifierConfig(
                target_digest=served.names.facts.digest(),
                tokenizer_digest=served.names.facts.tokenizer_digest,
                max_requests=options.max_requests,
                shares_prefixes=options.shares_prefixes,
            ),
            engine=served.engine,
            runner=self._runner,
            curve=self._pass_curve,
            identity=joined.identity,
            wait_for_work=self._wait_for_work,
            home=self._home,
            coordinator=coordinator,
            chain=chain,
            knows=lambda peer_id: peer_id in self._surroundings.known,
        )
        self.service.pass_s = self._speed.pass_s

    def _handlers(self) -> dict[str, StreamHandler]:
        return {VERIFY: self.service.handle, AUDIT: self.service.audits.handle}

    def _record_fields(self) -> dict[str, Any]:
        curve, stages = self._pass_curve, self.service.stages
        cost = None if stages else round(1000 * curve.seconds(4) / curve.seconds(1))
        return super()._record_fields() | {"stages": stages or None, "four_tokens_permille": cost}

    def _work_done(self) -> VerifyWork:
        return VerifyWork.of(self.service)

    def _end(self) -> None:
        super()._end()
        if self._home is not None:
            self._home.close()


class DrafterNode(RunningNode):
    """A drafter."""

    service: DrafterService

    def __init__(self, joined: JoinedNetwork, served: ServedModel, options: NodeOptions) -> None:
        super().__init__(joined, served, options)
        self.service = DrafterService(
            config=DrafterConfig(
                tokenizer_digest=served.names.facts.tokenizer_digest, max_requests=options.max_requests
            ),
            engine=served.engine,
            runner=self._runner,
            curve=self._pass_curve,
            identity=joined.identity,
            wait_for_work=self._wait_for_work,
        )
        self.service.pass_s = self._speed.pass_s

    def _handlers(self) -> dict[str, StreamHandler]:
        return {DRAFT: self.service.handle}

    def _work_done(self) -> DraftWork:
        return DraftWork.of(self.service)

    def _accepted(self) -> tuple[int, int]:
        return self.service.counts.accepted_tokens, self.service.counts.text_tokens
