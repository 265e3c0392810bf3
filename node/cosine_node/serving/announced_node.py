"""The common part of all running nodes: joins the network, answers streams, announces the record, and drains."""

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cosine_engine.models.served import ModelNames
from cosine_node.passes.emulation import Emulation
from cosine_node.passes.runner import PassSpeed
from cosine_node.serving.announcing import Announcer
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.guest import LOOK_S, CardWatch, Guest, Look, look_around
from cosine_node.serving.local_network import LocalNetwork
from cosine_node.serving.node_options import NetworkOptions
from cosine_node.serving.status_service import StatusService
from cosine_node.serving.surroundings import Surroundings
from cosine_node.serving.work import Work
from cosine_node.weights.service import WeightsService
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.storage.identity_file import ClaimedIdentity, claim_identity
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.channel import AGENT, StepCounts
from cosine_p2p.transport.delay import delayed
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.patience import ask_patiently, join_patience_s, unless_stopped
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.transport.reach import Reachable, ReachKind, best_first
from cosine_protocol.discover import DISCOVER, STATUS
from cosine_protocol.fields import MAX_ADDRESSES
from cosine_protocol.identity import Identity
from cosine_protocol.records import SCHEMA, NetworkCoordinate, NodeRecord, Role
from cosine_protocol.weights import WEIGHTS
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedNode, ObservedStage

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
    """The service of a node. `pass_s` is the time of a one-token pass that it reports to clients."""

    pass_s: float

    @property
    def requests(self) -> int:
        """The number of requests, or of a stage's chains, served now."""

    @property
    def progress(self) -> StepCounts: ...

    async def run(self) -> None: ...

    def rest(self, is_resting: bool) -> None: ...

    async def drain(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JoinedNetwork:
    """A node's transport, identity and options in a network that it has joined."""

    transport: HivemindTransport
    identity: Identity
    network: NetworkOptions
    local: LocalNetwork | None = None

    def directory(self) -> DhtDirectory:
        """Return the network's directory for this node."""
        return DhtDirectory(
            self.transport,
            self.identity,
            network=self.network.access.network,
            opener=self.transport.opener,
            membership=self.transport.config.gate.membership,
            note_addresses=self.transport.note_addresses,
        )

    async def read_cell(self, cell: str) -> Sequence[bytes]:
        """Return the records in one cell of the DHT."""
        return list((await self.transport.read([cell])).get(cell, {}).values())

    def be_found(self) -> None:
        """Advertise the node in the local network from now on."""
        if self.local is not None:
            self.local.be_found()

    def held_in(self, cell: str) -> Sequence[bytes]:
        """Return the records in one cell that this node stores itself."""
        return self.transport.held_in(cell)

    async def ready_fields(self, role: str) -> dict[str, object]:
        """Return the fields of the `ready` event; the first address is the one to give to others."""
        reach = self.transport.reach
        maddrs = best_first((*reach.addresses, *await self.transport.visible_maddrs()), local=local_hosts(()))
        return {"peer_id": self.transport.peer_id, "role": role, "maddrs": maddrs, **reach_fields(reach)}


def reach_fields(reach: Reachable) -> dict[str, object]:
    """Return the fields of an event for the reachability of a node."""
    return {"reach": reach.kind, "relays": list(reach.relays), "said": f"{str(reach)[:1].upper()}{str(reach)[1:]}."}


def claim(network: NetworkOptions, file: Path | None, stack: AsyncExitStack) -> tuple[ClaimedIdentity, PeerGate]:
    """Claim an identity until the stack is left; return it with the network's gate for it. Raises `UsageError`."""
    claimed = claim_identity(file)
    stack.callback(claimed.release)
    return claimed, network.access.gate(claimed.identity.peer_id)


async def join(
    network: NetworkOptions,
    claimed: ClaimedIdentity,
    gate: PeerGate,
    emit: Emit,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    *,
    is_relay: bool = False,
) -> JoinedNetwork | None:
    """Join the network until the stack is left. Return None if `stop` is set before that.

    Raises `UsageError`, and `PeerLost` if no peer answers for long.
    """
    emit("joining", {"network": network.access.network, "initial_peers": list(network.initial_peers)})
    start = partial(HivemindTransport.start, network.transport_config(claimed.file, gate, is_relay=is_relay))
    transport = await unless_stopped(ask_patiently(start, patience_s=join_patience_s()), stop)
    if transport is None:
        return None
    stack.push_async_callback(transport.close)
    local = None
    if network.access.uses_lan:
        local = LocalNetwork(transport, looks=not network.initial_peers)
        stack.push_async_callback(local.close)
        await unless_stopped(local.first(), stop)
    return JoinedNetwork(transport, claimed.identity, network, local)


@contextmanager
def observing(network: NetworkOptions, nodes: "Sequence[AnnouncedNode]") -> Iterator[None]:
    """Serve the metrics of nodes within the context, if a port is set."""
    if network.metrics_port is None:
        yield
        return
    from cosine_node.metrics.node import registry_of, serving_metrics

    registry = registry_of([node.observed() for node in nodes])
    with serving_metrics(registry, host=network.metrics_host, port=network.metrics_port):
        yield


class AnnouncedNode(ABC):
    """A running node: its streams, loops and record. Subclasses set `service`."""

    service: NodeService
    weights: WeightsService | None = None
    """Serves the target's weights to others, if they are shared."""

    def __init__(
        self,
        joined: JoinedNetwork,
        *,
        role: Role,
        names: ModelNames,
        speed: PassSpeed,
        emulation: Emulation | None,
    ) -> None:
        """`emulation` is that of the device or link, if any."""
        self._emulation = emulation
        self._joined = joined
        self._transport = joined.transport
        self._role = role
        self._names = names
        self._model_name = names.model_name
        self._speed = speed
        self._guest = Guest(joined.network.guest)
        rules = joined.network.guest
        card = CardWatch() if rules.only_idle else None
        self._looks = look_around(time.monotonic, card) if rules.are_any else None
        self._directory = joined.directory()
        self._vivaldi = Vivaldi(random.random)
        self._surroundings = Surroundings(
            joined.transport, self._directory, self._vivaldi, target=names.target_name, rng=random.Random()
        )
        listed = tuple(dict.fromkeys((names.target_name, names.facts.digest().hex())))
        self._announcer = Announcer(
            self._directory, joined.identity, self._describe, listed, is_reachable=self._is_reachable
        )

    @property
    def coordinate(self) -> NetworkCoordinate:
        """The node's network coordinate, by its own measurements."""
        return self._vivaldi.coordinate

    @abstractmethod
    def _handlers(self) -> dict[str, StreamHandler]:
        """The stream handlers by protocol."""

    @abstractmethod
    def _record_fields(self) -> dict[str, Any]:
        """The fields of the record that depend on the role."""

    @abstractmethod
    def observed(self) -> "ObservedNode | ObservedStage":
        """Return the node for its metrics."""

    @abstractmethod
    def _work_done(self) -> Work:
        """The work done so far."""

    @abstractmethod
    def _end(self) -> None:
        """Release the resources of the service."""

    def _accepted(self) -> tuple[int, int] | None:
        """For a drafter: the tokens that clients accepted from it, and all tokens of their texts."""
        return None

    @property
    def _until_loaded_s(self) -> float:
        """The time that the next pass waits for the model."""
        return 0.0

    def _beside(self, emit: Emit) -> Sequence[Awaitable[None]]:
        """Further loops that run until the node stops."""
        return ()

    async def live(self, emit: Emit, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish running requests.

        The `ready` event follows once the node answers streams and is announced.
        """

        def describe() -> tuple[bytes, int, int]:
            return self._announcer.latest or b"", self.service.requests, self.service.progress.steps

        emit("announcing", {"target": self._names.target_name})
        files = TokenizerFiles.read(self._names.folder)
        handlers = self._handlers() | {
            DISCOVER: DiscoverService(self._joined.read_cell, files, held_in=self._joined.held_in).handle,
            STATUS: StatusService(describe, vivaldi=self._vivaldi, accepted=self._accepted).handle,
        }
        if self.weights is not None:
            handlers[WEIGHTS] = self.weights.handle
        one_way_s = self._emulation.one_way_s if self._emulation else 0.0
        delays = {protocol: delayed(handler, one_way_s=one_way_s) for protocol, handler in handlers.items()}
        if self._looks is not None:
            # Before the node can be found.
            self._guest.see(next(self._looks))
        async with self._transport.serving(delays, self._announcer.restarted):
            # The announcer retries later if this fails.
            await self._announcer.announce()
            self._joined.be_found()
            emit("announced", self._announced_fields())
            emit("ready", await self._joined.ready_fields(self._role) | self._ready_fields())
            if said := drafts_sentence(self._describe().four_tokens_permille):
                emit("drafts_dear", {"said": f"{said[:1].upper()}{said[1:]}."})
            if self._transport.is_alone:
                emit("alone", {"network": self._joined.network.access.network})
            await self._work(emit, stop)
        emit("stopped", self._summary())

    def _ready_fields(self) -> dict[str, object]:
        return {"model": self._model_name}

    async def _work(self, emit: Emit, stop: asyncio.Event) -> None:
        """Run all loops until `stop`; an error in one of them ends the node."""
        guest = [] if self._looks is None else [self._keep_rules(self._looks, emit)]
        beside = (*guest, self._surroundings.run(), self._watch(emit), self._tell_work(emit), *self._beside(emit))
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
            self._end()

    def _observed_fields(self, **facts: str) -> dict[str, Any]:
        """The fields of `Observed` for this node, with further `facts`."""
        return {
            "role": self._role,
            "model_name": self._names.model_name,
            "peer_id": self._transport.peer_id,
            "facts": {"version": AGENT, "target": self._names.target_name, **facts},
            "network": self._transport,
            "directory": self._directory,
        }

    def _work_fields(self, work: Work) -> dict[str, object]:
        """The fields of an event about work."""
        names = {"peer_id": self._transport.peer_id, "model": self._model_name}
        return names | asdict(work) | {"said": str(work)}

    def _announced_fields(self) -> dict[str, object]:
        return {"target": self._names.target_name, "stored": bool(self._announcer.is_stored)}

    def _summary(self) -> dict[str, object]:
        """The fields of the `stopped` event."""
        return self._work_fields(self._work_done()) | {"passes": self.service.progress.steps}

    async def _tell_work(self, emit: Emit) -> None:
        """Emit `worked` regularly if the node has done any work since the last report."""
        told = self._work_done()
        while True:
            await asyncio.sleep(TELL_WORK_EVERY_S)
            done = self._work_done()
            if done != told:
                emit("worked", self._work_fields(done.since(told)))
                told = done

    async def _keep_rules(self, looks: Iterator[Look], emit: Emit) -> None:
        """Let the node rest and work by the rules of its operator."""
        told = ""
        while True:
            if (reason := self._guest.reason) != told:
                told = reason
                self.service.rest(bool(reason))
                said = f"rests: {reason}" if reason else "works again"
                emit("rested", {"model": self._model_name, "reason": reason, "said": said})
                await self._announcer.restarted()
            await asyncio.sleep(LOOK_S)
            self._guest.see(next(looks))

    async def _say_goodbye(self, announcing: "asyncio.Future[None]") -> None:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        is_idle = not self.service.requests
        await self._announcer.stop()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.service.drain()
            await asyncio.sleep(0.0 if is_idle else FAREWELL_S)
        except TimeoutError:
            LOG.warning("requests were still running after %g s; they will go on elsewhere", DRAIN_S)

    async def _watch(self, emit: Emit) -> None:
        """Announce changes of load, addresses and speed; emit events when reachability or announcement change."""
        told = self._announced_fields()
        told_reach = self._transport.reach
        while True:
            await asyncio.sleep(LOAD_CHECK_S)
            if (reach := self._transport.reach) != told_reach:
                told_reach = reach
                emit("reached", {"peer_id": self._transport.peer_id, **reach_fields(reach)})
            if self._announced_fields() != told:
                told = self._announced_fields()
                emit("announced", told)
            if self._speed.refresh(time.monotonic()):
                LOG.info("a pass over one token takes %.1f ms now", 1e3 * self._speed.pass_s)
                self.service.pass_s = self._speed.pass_s
            self._announcer.changed()

    def _is_reachable(self) -> bool:
        return self._transport.reach.kind is not ReachKind.NOBODY and not self._guest.reason

    def _describe(self) -> NodeRecord:
        described: dict[str, Any] = {
            "schema": SCHEMA,
            "peer_id": self._transport.peer_id,
            "role": self._role,
            "target": self._names.target_name,
            "target_digest": self._names.facts.digest(),
            "content_digest": self._names.facts.content_digest,
            "tokenizer_digest": self._names.facts.tokenizer_digest,
            "model": self._model_name,
            "expertise": (),
            "load_requests": self.service.requests,
            "pass_us": round(1e6 * (self._speed.pass_s + self._until_loaded_s)),
            "eos": self._names.facts.eos,
            "addresses": self._transport.reach.addresses[:MAX_ADDRESSES],
            "software": AGENT,
            "emulated": self._emulation.name if self._emulation else "",
            "sequence": 0,
            "issued_at_s": 0.0,
            "lifetime_s": 0.0,
            "generation_defaults": self._names.facts.generation_defaults,
            "certificate": self._transport.config.gate.certificate or None,
            "coordinate": self._vivaldi.coordinate,
        }
        return NodeRecord(**described | self._record_fields())
