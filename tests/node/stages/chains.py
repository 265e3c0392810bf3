"""Stages of a tiny model in memory, as services that a head finds."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import transformers as tf

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.links import ChainPlan, StageLinks
from cosine_node.chains.search import StagePlace
from cosine_node.stages.host import StageHost, StageModel
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import INBOX_BYTES, StageService
from cosine_p2p.request.offload import Offload, Threads
from tests.engine.tiny_models import COMMON, VOCAB, build

TARGET: Final = bytes(range(32))
POOL_TOKENS: Final = 160
FOUR: Final[dict[str, Any]] = COMMON | {"num_hidden_layers": 4}


def save_tiny(folder: Path) -> Path:
    """A model of four layers."""
    build(tf.LlamaConfig(**FOUR)).save_pretrained(folder)
    return folder


@dataclass(slots=True)
class ServedStages:
    """Services in a network, named `stage 0` and so on, or by identities."""

    network: MemoryNetwork
    models: Sequence[StageModel]
    services: list[StageService]
    hosts: list[StageHost]
    names: Sequence[str]

    def plan(self, *, first_sequence: int = 0, skip: int = 0) -> ChainPlan:
        """A chain over all stages but the first `skip`."""
        places = [StagePlace(f"stage {number}", model.layers) for number, model in enumerate(self.models)]
        return ChainPlan(
            places=tuple(places[skip:]),
            target_digest=TARGET,
            numerics="float32",
            vocab_tokens=VOCAB,
            pool_tokens=POOL_TOKENS,
            first_sequence=first_sequence,
        )

    @property
    def is_idle(self) -> bool:
        """True if nothing of any chain is left."""
        return not any(service.requests or service.waiting_bytes for service in self.services) and not any(
            host.chains for host in self.hosts
        )


def head_of(links: StageLinks) -> StagedEngine:
    return StagedEngine(links, context_tokens=256)


@asynccontextmanager
async def served(
    models: Sequence[StageModel],
    *,
    network: MemoryNetwork | None = None,
    offload: Offload | None = None,
    host_of: Callable[[int, StageModel], StageHost] = lambda number, model: StageHost(model),
    service_of: Callable[..., StageService] = StageService,
    inbox_bytes: int = INBOX_BYTES,
    **options: Any,
) -> AsyncIterator[ServedStages]:
    """Each model served by a peer of its own; without `offload` their passes run in one thread."""
    network = network or MemoryNetwork()
    threads = Threads("engine", 1)
    names = [f"stage {number}" for number, _ in enumerate(models)]
    stages = ServedStages(network, models, [], [], names)
    transports = [network.join(name) for name in names]
    for number, (transport, model) in enumerate(zip(transports, models, strict=True)):
        host = host_of(number, model)
        passes = StagePasses(offload or threads, **options)
        service = service_of(
            host, transport=transport, target_digest=TARGET, passes=passes, inbox_bytes=inbox_bytes
        )
        await service.start()
        stages.hosts.append(host)
        stages.services.append(service)
    try:
        yield stages
    finally:
        for transport in transports:
            await transport.close()
        threads.close()
