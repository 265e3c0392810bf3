"""A running node: it answers streams, is announced, does the work of its role, and drains at the end."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from cosine_engine.models.served import ModelNames
from cosine_node.passes.emulation import Emulation
from cosine_node.passes.runner import PassSpeed
from cosine_node.serving.announcing import Announcer
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.guest import LOOK_S, Guest, Look, looks_for
from cosine_node.serving.joining import JoinedNetwork, entering, reach_fields
from cosine_node.serving.options import NetworkOptions
from cosine_node.serving.status_service import StatusService
from cosine_node.serving.work import Work
from cosine_node.weights.service import WeightsService
from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.channel import AGENT, StepCounts
from cosine_p2p.transport.delay import delayed
from cosine_p2p.transport.reach import ReachKind
from cosine_protocol.discover import DISCOVER, STATUS
from cosine_protocol.fields import MAX_ADDRESSES
from cosine_protocol.records import SCHEMA, NodeRecord, Role
from cosine_protocol.weights import WEIGHTS
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import Observed, ObservedPart

LOG = logging.getLogger(__name__)

LOAD_CHECK_S: Final = 5.0
"""The announcer changes a record at most this often."""

DRAIN_S: Final = 20.0
"""Most generations end in this time; clients continue the others at another node."""

TELL_WORK_EVERY_S: Final = 60.0
"""The interval of reports of work to the volunteer."""

FAREWELL_S: Final = 0.5
"""Enough for the last messages to be sent."""


class NodeService(Protocol):
    """The service of a role."""

    @property
    def requests(self) -> int:
        """The number of requests, or of a stage's chains, served now."""

    @property
    def progress(self) -> StepCounts: ...

    async def run(self) -> None: ...

    def rest(self, is_resting: bool) -> None: ...

    async def drain(self) -> None: ...


class NodeRole(ABC):
    """The role of a running node.

    names: The names of its model and target.
    service: The service that answers clients.
    speed: The announced time of a pass.
    emulation: The emulated device or link, if any.
    facts: Constant facts for the metrics.
    weights: Serves the target's weights to others. None: they are not shared.
    """

    role: ClassVar[Role]
    names: ModelNames
    service: NodeService
    speed: PassSpeed
    emulation: Emulation | None
    facts: Mapping[str, str]
    weights: WeightsService | None = None

    @abstractmethod
    def handlers(self) -> dict[str, StreamHandler]:
        """The handlers of its streams, by protocol."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The fields of the node's record that depend on the role."""

    @abstractmethod
    def work(self) -> Work:
        """The work done so far."""

    @abstractmethod
    def observed(self) -> "Sequence[ObservedPart]":
        """The values of its metrics."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory."""

    def accepted(self) -> tuple[int, int] | None:
        """For a drafter: the tokens that clients accepted from it, and all tokens of their texts."""
        return None

    def ready_fields(self) -> dict[str, object]:
        """Further fields of the `ready` event."""
        return {}

    def stopped_fields(self) -> dict[str, object]:
        """Further fields of the `stopped` event."""
        return {}


async def run_bootstrap(network: NetworkOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a node without a role, which stores the DHT and relays connections, until `stop` is set."""
    async with entering(network, emit, stop, is_relay=True) as entrance:
        if (joined := await entrance.join()) is None:
            return
        await joined.transport.serve(DISCOVER, DiscoverService(joined.read_cell, held_in=joined.held_in).handle)
        joined.be_found()
        emit("ready", await joined.ready_fields("bootstrap"))
        await stop.wait()


async def run_together(
    network: NetworkOptions, nodes: "Sequence[RunningNode]", emit: Emit, stop: asyncio.Event
) -> None:
    """Run the nodes of a process, and serve their metrics. An error of one stops the others and is raised."""
    with observing(network, nodes):
        await together([node.run(emit, stop) for node in nodes], stop)


@contextmanager
def observing(network: NetworkOptions, nodes: "Sequence[RunningNode]") -> Iterator[None]:
    """Serve the metrics of nodes within the context, if a port is set."""
    if network.metrics_port is None:
        yield
        return
    from cosine_node.metrics.node import registry_of, serving_metrics

    registry = registry_of([node.observed() for node in nodes])
    with serving_metrics(registry, host=network.metrics_host, port=network.metrics_port):
        yield


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


class RunningNode:
    """A node with a role in a network that it has joined."""

    def __init__(self, joined: JoinedNetwork, role: NodeRole) -> None:
        self._joined = joined
        self._role = role
        self._transport = joined.transport
        rules = joined.options.guest
        self._guest = Guest(rules)
        self._looks = looks_for(rules)
        listed = tuple(dict.fromkeys((role.names.target_name, role.names.facts.digest().hex())))
        self._announcer = Announcer(
            joined.directory, joined.identity, self._describe, listed, is_reachable=self._is_reachable
        )

    async def run(self, emit: Emit, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish running requests.

        The `ready` event follows once the node answers streams and is announced.
        """
        role = self._role
        emit("announcing", {"target": role.names.target_name})
        handlers = self._handlers()
        if self._looks is not None:
            # Before the node can be found.
            self._guest.see(next(self._looks))
        async with self._transport.serving(handlers, self._announcer.restarted):
            # The announcer retries later if this fails.
            await self._announcer.announce()
            self._joined.be_found()
            emit("announced", self._announced_fields())
            ready = await self._joined.ready_fields(role.role)
            emit("ready", ready | {"model": role.names.model_name} | role.ready_fields())
            if said := drafts_sentence(self._describe().four_tokens_permille):
                emit("drafts_dear", {"said": f"{said[:1].upper()}{said[1:]}."})
            if self._transport.is_alone:
                emit("alone", {"network": self._joined.options.access.network})
            await self._work(emit, stop)
        passes = {"passes": role.service.progress.steps}
        emit("stopped", self._work_fields(role.work()) | passes | role.stopped_fields())

    def observed(self) -> "Observed":
        """The node as its metrics see it."""
        from cosine_node.metrics.node import OF_NETWORK, Observed

        role = self._role
        return Observed(
            (role.role, role.names.model_name, self._transport.peer_id),
            {"version": AGENT, "target": role.names.target_name, **role.facts},
            (*role.observed(), (OF_NETWORK, self._joined)),
        )

    def _handlers(self) -> dict[str, StreamHandler]:
        """The handlers of all streams by protocol, with the delay of an emulated link."""
        role, joined = self._role, self._joined

        def describe() -> tuple[bytes, int, int]:
            return self._announcer.latest or b"", role.service.requests, role.service.progress.steps

        files = TokenizerFiles.read(role.names.folder)
        status = StatusService(describe, vivaldi=joined.surroundings.vivaldi, accepted=role.accepted)
        handlers = role.handlers() | {
            DISCOVER: DiscoverService(joined.read_cell, files, held_in=joined.held_in).handle,
            STATUS: status.handle,
        }
        if role.weights is not None:
            handlers[WEIGHTS] = role.weights.handle
        one_way_s = role.emulation.one_way_s if role.emulation else 0.0
        return {protocol: delayed(handler, one_way_s=one_way_s) for protocol, handler in handlers.items()}

    async def _work(self, emit: Emit, stop: asyncio.Event) -> None:
        """Run all loops until `stop`; an error in one of them ends the node."""
        role = self._role
        announcing = asyncio.ensure_future(self._announcer.run())
        works = [role.service.run(), self._watch(emit), self._tell_work(emit)]
        works.append(self._joined.surroundings.run(role.names.target_name))
        if self._looks is not None:
            works.append(self._keep_rules(self._looks, emit))
        loops = [announcing, *map(asyncio.ensure_future, works)]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._say_goodbye(announcing)
            for task in done - {stopping}:
                task.result()
        finally:
            for task in (*loops, stopping):
                task.cancel()
            await asyncio.gather(*loops, stopping, return_exceptions=True)
            role.close()

    async def _say_goodbye(self, announcing: "asyncio.Future[None]") -> None:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        is_idle = not self._role.service.requests
        await self._announcer.stop()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._role.service.drain()
            await asyncio.sleep(0.0 if is_idle else FAREWELL_S)
        except TimeoutError:
            LOG.warning("requests were still running after %g s; they will go on elsewhere", DRAIN_S)

    async def _tell_work(self, emit: Emit) -> None:
        """Emit `worked` regularly if the node has done any work since the last report."""
        told = self._role.work()
        while True:
            await asyncio.sleep(TELL_WORK_EVERY_S)
            done = self._role.work()
            if done != told:
                emit("worked", self._work_fields(done.since(told)))
                told = done

    async def _keep_rules(self, looks: Iterator[Look], emit: Emit) -> None:
        """Let the node rest and work by the rules of its operator."""
        told = ""
        while True:
            if (reason := self._guest.reason) != told:
                told = reason
                self._role.service.rest(bool(reason))
                said = f"rests: {reason}" if reason else "works again"
                emit("rested", {"model": self._role.names.model_name, "reason": reason, "said": said})
                await self._announcer.restarted()
            await asyncio.sleep(LOOK_S)
            self._guest.see(next(looks))

    async def _watch(self, emit: Emit) -> None:
        """Announce changes of load, addresses and speed; emit events when reachability or announcement change."""
        told = self._announced_fields()
        announced_reach = self._transport.reach
        speed = self._role.speed
        while True:
            await asyncio.sleep(LOAD_CHECK_S)
            if (reach := self._transport.reach) != announced_reach:
                announced_reach = reach
                emit("reached", {"peer_id": self._transport.peer_id, **reach_fields(reach)})
            if self._announced_fields() != told:
                told = self._announced_fields()
                emit("announced", told)
            if speed.refresh(time.monotonic()):
                LOG.info("a pass over one token takes %.1f ms now", 1e3 * speed.pass_s)
            self._announcer.changed()

    def _work_fields(self, work: Work) -> dict[str, object]:
        """The fields of an event about work."""
        names = {"peer_id": self._transport.peer_id, "model": self._role.names.model_name}
        return names | asdict(work) | {"said": str(work)}

    def _announced_fields(self) -> dict[str, object]:
        return {"target": self._role.names.target_name, "stored": bool(self._announcer.is_stored)}

    def _is_reachable(self) -> bool:
        return self._transport.reach.kind is not ReachKind.NOBODY and not self._guest.reason

    def _describe(self) -> NodeRecord:
        role, facts = self._role, self._role.names.facts
        described: dict[str, Any] = {
            "schema": SCHEMA,
            "peer_id": self._transport.peer_id,
            "role": role.role,
            "target": role.names.target_name,
            "target_digest": facts.digest(),
            "content_digest": facts.content_digest,
            "tokenizer_digest": facts.tokenizer_digest,
            "model": role.names.model_name,
            "expertise": (),
            "load_requests": role.service.requests,
            "pass_us": round(1e6 * role.speed.pass_s),
            "eos": facts.eos,
            "addresses": self._transport.reach.addresses[:MAX_ADDRESSES],
            "software": AGENT,
            "emulated": role.emulation.name if role.emulation else "",
            "sequence": 0,
            "issued_at_s": 0.0,
            "lifetime_s": 0.0,
            "generation_defaults": facts.generation_defaults,
            "certificate": self._transport.config.gate.certificate or None,
            "coordinate": self._joined.surroundings.vivaldi.coordinate,
        }
        return NodeRecord(**described | role.record())
