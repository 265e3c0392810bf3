"""A drafter: guesses the next tokens of a target for its verifiers."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosine_engine.models.served import ServedModel
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.serving.engine_passes import EnginePasses
from cosine_node.serving.joining import JoinedNetwork, entering
from cosine_node.serving.node import NodeRole, RunningNode, run_together
from cosine_node.serving.options import DraftOptions, NetworkOptions
from cosine_node.serving.whole_model import load_node
from cosine_node.serving.work import DraftWork
from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.draft import DRAFT
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedPart


async def run_drafters(
    network: NetworkOptions, drafters: Sequence[DraftOptions], emit: Emit, stop: asyncio.Event
) -> None:
    """Run one or several drafters in this process until `stop` is set; then they drain.

    Each has its own identity, transport, record and engine loop. All are loaded before any is announced. An error
    of one sets `stop`, so that the others drain, and is raised. Raises `UsageError` for an unusable model, identity
    or address, and `PeerLost` if initial peers do not answer.
    """
    async with AsyncExitStack() as stack:
        files = identity_files(network.identity_file, len(drafters))
        entrances = [
            await stack.enter_async_context(entering(network, emit, stop, identity_file=file)) for file in files
        ]
        loaded = []
        for options in drafters:
            try:
                served, _ = await load_node(options, emit)
            except UsageError as error:
                if len(drafters) == 1:
                    raise
                raise UsageError(f"{options.source.model} cannot be served: {error}") from error
            loaded.append(served)
        if stop.is_set():
            return
        nodes: list[RunningNode] = []
        peers: Sequence[str] = ()
        for entrance, options, served in zip(entrances, drafters, loaded, strict=True):
            if (joined := await entrance.join(peers)) is None:
                return
            nodes.append(RunningNode(joined, DraftRole(joined, served, options)))
            # Without initial peers, all nodes join the network of the first.
            peers = peers or await joined.transport.visible_maddrs()
        await run_together(network, nodes, emit, stop)


def identity_files(first: Path | None, count: int) -> list[Path | None]:
    """Return the key files of the nodes of a process: FILE, FILE-2, ..., or None for free default ones."""
    if first is None:
        return [None] * count
    return [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, count + 1))]


class DraftRole(NodeRole):
    """A drafter."""

    role = Role.DRAFTER
    service: DrafterService

    def __init__(self, joined: JoinedNetwork, served: ServedModel, options: DraftOptions) -> None:
        self.names = served.names
        self.emulation = options.emulation
        self._options = options
        self._passes = EnginePasses.of_model(served, options)
        self.speed = self._passes.speed
        self.facts = {"numerics": served.engine.numerics}
        self.service = DrafterService(
            self._passes.served(self._wait_for_work),
            config=DrafterConfig(
                tokenizer_digest=served.names.facts.tokenizer_digest, max_requests=options.max_requests
            ),
            identity=joined.identity,
        )

    async def _wait_for_work(self, work: asyncio.Event) -> None:
        await self._passes.wait(work, self.service.progress)

    def handlers(self) -> dict[str, StreamHandler]:
        return {DRAFT: self.service.handle}

    def record(self) -> dict[str, Any]:
        return self._passes.record(self._options.max_requests) | {"expertise": self._options.expertise}

    def work(self) -> DraftWork:
        return DraftWork.of(self.service)

    def accepted(self) -> tuple[int, int]:
        return self.service.counts.accepted_tokens, self.service.counts.text_tokens

    def observed(self) -> "Sequence[ObservedPart]":
        from cosine_node.metrics.node import OF_DRAFTERS, OF_REQUESTS, RequestPlaces

        served = RequestPlaces(self.service, self._passes.engine, self._options.max_requests)
        return ((OF_REQUESTS, served), (OF_DRAFTERS, self.service))

    def stopped_fields(self) -> dict[str, object]:
        return self._passes.stopped_fields(self._options)

    def close(self) -> None:
        self._passes.runner.close()
