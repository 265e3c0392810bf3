"""The model of a stage or head: a complete local one, or one whose tensors are fetched from the swarm."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cosine_engine import zoo
from cosine_engine.gguf.transformers_model import ELSEWHERE
from cosine_engine.gguf.unfolding import unfold_part
from cosine_engine.models import loading
from cosine_engine.models.hub import HubModel
from cosine_engine.models.hub_source import HubSource
from cosine_engine.models.partial_folder import PartialFolder
from cosine_engine.models.served import ModelNames
from cosine_engine.models.tokenizer_conversion import convert_tokenizer
from cosine_node.serving.joining import Entrance, JoinedNetwork
from cosine_node.weights.fetching import FetchProgress
from cosine_node.weights.service import WeightsService
from cosine_node.weights.swarm_model import WAIT_S, SoughtModel, SwarmModel
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.patience import unless_stopped
from cosine_protocol.errors import UsageError
from cosine_terminal.events import Emit


def local_folder(model: str) -> Path | None:
    """Return the folder of a complete local model, or None if it must be fetched. Raises `UsageError`."""
    try:
        resolved = zoo.resolve(model)
    except UsageError:
        if SoughtModel.parse(model).digest is None:
            raise
        resolved = model
    if isinstance(resolved, Path):
        return loading.open_place(resolved).folder
    try:
        held = HubModel.parse(resolved).held()
    except UsageError:
        return None
    return None if held is None else loading.open_place(held).folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedModel:
    """A model whose small files are present, and some of its tensors."""

    model: SwarmModel
    partial: PartialFolder
    sought: SoughtModel

    @property
    def folder(self) -> Path:
        return self.partial.path

    def names(self, target: str, *, asked: str) -> ModelNames:
        """Return its names for a record. Raises `UsageError` if the files belong to another model."""
        names = ModelNames.read(self.sought.name, self.sought.name if target == asked else target, self.folder)
        if names.facts.digest() != self.model.target_digest:
            raise UsageError(
                f"The files of {self.sought.name} from the swarm have the digest {names.facts.digest().hex()}, not "
                f"the announced {self.model.target_digest.hex()}; download the model from its publisher."
            )
        return names

    async def fetch(self, is_wanted: Callable[[str], bool], *, what: str, emit: Emit) -> None:
        """Fetch and verify the tensors whose names are wanted. Raises `UsageError`."""
        rows = [row for row, tensor in enumerate(self.partial.manifest.tensors) if is_wanted(tensor.name)]
        if not rows:
            return
        told = ""

        def tell(progress: FetchProgress) -> None:
            nonlocal told
            said = str(progress)
            event = "waiting_for_weights" if progress.lacking else "gathered"
            fields = {"bytes": progress.fetched_bytes, "of_bytes": progress.wanted_bytes, "said": said}
            if said != told:
                told = said
                emit(event, {"model": what, "sources": progress.sources, **fields})

        emit("gathering", {"model": what})
        await self.model.fetch(self.partial, rows, what=what, tell=tell)


async def find_model(joined: JoinedNetwork, model: str, emit: Emit) -> FetchedModel | None:
    """Find a model in the swarm; wait for one that is named by its digest.

    Return None for a name that no node has: it may be on the hub. Raises `UsageError`.
    """
    sought, told = SoughtModel.parse(model), ""
    hub = HubSource.of(sought.name)
    while True:
        found = await SwarmModel.find(joined.transport, joined.directory, sought, hub=hub)
        partial = None if found is None else await found.folder()
        if found is not None and partial is not None:
            fetched = FetchedModel(model=found, partial=partial, sought=sought)
            if partial.is_gguf:
                # The tensors from which a configuration is derived, besides the metadata.
                await fetched.fetch(ELSEWHERE.__contains__, what=f"the configuration of {sought.name}", emit=emit)
                await asyncio.to_thread(unfold_part, partial.path)
            else:
                await asyncio.to_thread(convert_tokenizer, partial.path)
            return fetched
        if found is None and sought.digest is None:
            return None
        said = f"No node in the swarm {'gives the manifest of' if found else 'has'} {sought.name} now."
        if said != told:
            told = said
            emit("waiting_for_weights", {"said": said})
        await asyncio.sleep(WAIT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """The folder of a node's model, which is complete unless it is `fetched`."""

    asked: str
    target: str
    folder: Path
    fetched: FetchedModel | None = None

    def names(self) -> ModelNames:
        """Return its names for a record; reads all local weights. Blocks. Raises `UsageError`."""
        if self.fetched is not None:
            return self.fetched.names(self.target, asked=self.asked)
        return ModelNames.read(self.asked, self.target, self.folder)


async def open_model(model: str, target: str, entrance: Entrance) -> OpenedModel | None:
    """Open a local model, else one from the swarm, else one from the hub. Return None if stopped before.

    Only a model that is not local needs the network, which is joined then. Raises `UsageError`.
    """
    folder = await asyncio.to_thread(local_folder, model)
    if folder is not None:
        return OpenedModel(asked=model, target=target, folder=folder)
    joined, emit, stop = await entrance.join(), entrance.emit, entrance.stop
    if joined is None:
        return None
    found = await unless_stopped(find_model(joined, model, emit), stop)
    if stop.is_set():
        return None
    folder = (await asyncio.to_thread(loading.open_model, model, emit)).folder if found is None else found.folder
    return OpenedModel(asked=model, target=target, folder=folder, fetched=found)


async def sharing(folder: Path) -> WeightsService:
    """Return a service that shares the weights in a folder. Raises `UsageError`."""
    return WeightsService(await asyncio.to_thread(HeldWeights.read, folder))
