"""A small model with layers, and in-memory nodes that hold all or a part of it."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from cosine_engine.models.partial_folder import PartialFolder
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_node.weights.fetching import FetchProgress, SourcePlace, WeightsFetch
from cosine_node.weights.peer_source import PeerSource
from cosine_node.weights.service import WeightsService
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.base import Stream
from cosine_protocol.weights import PIECE_BYTES, WEIGHTS
from tests.cosine_p2p.text.test_target import Tensors, write_safetensors
from tests.scenes import in_real_time

LAYERS = 3


def tensors() -> Tensors:
    """An embedding, layers with a large and a small tensor, and a norm, of random bytes."""
    drawn = random.Random(7)
    sizes = {"model.embed.weight": PIECE_BYTES + 4, "model.norm.weight": 8}
    for layer in range(LAYERS):
        sizes |= {f"model.layers.{layer}.up.weight": 3 * PIECE_BYTES - 8, f"model.layers.{layer}.norm.weight": 16}
    return {name: ("F32", [size // 4], drawn.randbytes(size)) for name, size in sizes.items()}


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": LAYERS}))
    (folder / "tokenizer.json").write_text("{}")
    every = tensors()
    for number in range(2):
        some = {name: every[name] for name in list(every)[number::2]}
        write_safetensors(folder / f"model-0000{number + 1}-of-00002.safetensors", some)
    return folder


def held(folder: Path) -> HeldWeights:
    return HeldWeights.read(folder, cache_folder=folder.parent / "hashes")


def rows_of(known: HeldWeights, *parts: str) -> set[int]:
    return {row for row, one in enumerate(known.manifest.tensors) if any(part in one.name for part in parts)}


class Nodes:
    """An in-memory network with a node that fetches."""

    def __init__(self, known: HeldWeights, *, one_way_s: float = 0.0) -> None:
        self.known = known
        self.network = MemoryNetwork(one_way_s=one_way_s)
        self.here: MemoryTransport = self.network.join("here")
        self.names: list[str] = []
        self.told: list[FetchProgress] = []
        self._awaited: list[tuple[Callable[[FetchProgress], bool], asyncio.Event]] = []

    async def add(self, name: str, handle: Callable[[Stream], Awaitable[None]] | None = None) -> None:
        self.names.append(name)
        await self.network.join(name).serve(WEIGHTS, handle or WeightsService(self.known).handle)

    async def has_told(self, fits: Callable[[FetchProgress], bool]) -> None:
        found = asyncio.Event()
        self._awaited.append((fits, found))
        await found.wait()

    def _tell(self, progress: FetchProgress) -> None:
        self.told.append(progress)
        for fits, found in self._awaited:
            if fits(progress):
                found.set()

    async def find(self) -> Sequence[SourcePlace]:
        opened = partial(PeerSource.opened, self.here, content_digest=self.known.content_digest)
        return [SourcePlace(name, partial(opened, name)) for name in self.names]

    async def fetch(self, folder: PartialFolder, wanted: Collection[int]) -> None:
        await WeightsFetch(folder, wanted, what="the model", tell=self._tell).run(self.find)


@in_real_time
async def fetch_from(
    known: HeldWeights, folder: PartialFolder, *parts: str, one_way_s: float = 0.0, **sources: WeightsService | None
) -> Nodes:
    """Fetch the tensors whose names contain one of `parts`. A source None holds all."""
    nodes = Nodes(known, one_way_s=one_way_s)
    for name, service in sources.items():
        await nodes.add(name, None if service is None else service.handle)
    await nodes.fetch(folder, rows_of(known, *parts))
    return nodes


def new_folder(known: HeldWeights, cache: Path) -> PartialFolder:
    folder = PartialFolder(known.manifest, known.encoded, cache_folder=cache)
    folder.write_parts(known.parts)
    return folder
