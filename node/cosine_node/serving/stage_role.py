"""A stage: chooses layers of a target, loads them, and computes them for the chains of heads."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_engine.constraints.grammars import Grammars
from cosine_engine.models.served import MEASURE_S, ModelNames
from cosine_node.passes.runner import PassSpeed, in_ending_thread
from cosine_node.serving.fetched_model import open_model, sharing
from cosine_node.serving.joining import JoinedNetwork, entering
from cosine_node.serving.node import NodeRole, RunningNode, run_together
from cosine_node.serving.options import NetworkOptions, StageOptions
from cosine_node.serving.work import StageWork
from cosine_node.stages.host import StageHost, wanted_tensors
from cosine_node.stages.opening import WIDE_TOKENS, LoadedStage, StageDraft
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import MAX_CHAINS, StageService
from cosine_node.weights.service import WeightsService
from cosine_p2p.request.offload import Threads
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.patience import unless_stopped
from cosine_protocol.errors import CosineError
from cosine_protocol.records import Role, StageOffer
from cosine_protocol.stage import STAGE, LayerRange
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedPart

BUSY_STEP_PERMILLE: Final = 100
"""Rounded, as each change of the record is sent to several nodes."""


def stage_draft(options: StageOptions, folder: Path) -> StageDraft:
    """Return the draft of the stage for a model's folder. Raises `UsageError`."""
    source, requests = options.source, options.max_requests
    return StageDraft(
        folder, source.model, source.engine, layers=options.layers, memory=options.memory, requests=requests
    )


async def run_stage(network: NetworkOptions, options: StageOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a stage until `stop` is set; then its chains end, and their heads continue over other stages.

    Raises `UsageError` for an unusable model, layers, identity or address, and `PeerLost` if initial peers do not
    answer.
    """
    source = options.source
    async with entering(network, emit, stop) as entrance:
        opened = await open_model(source.model, source.target, entrance)
        if opened is None:
            return
        # For a local model, wrong options are reported before joining.
        draft = await asyncio.to_thread(stage_draft, options, opened.folder)
        names = await asyncio.to_thread(opened.names)
        if (joined := await entrance.join()) is None:
            return
        layers = draft.named or draft.choose(await _held_by_others(joined, names, draft))
        what = f"layers {layers} of {layers.layers} of {names.model_name}"
        if opened.fetched is not None:
            is_wanted = await asyncio.to_thread(wanted_tensors, str(opened.folder), layers)
            await unless_stopped(opened.fetched.fetch(is_wanted, what=what, emit=emit), stop)
        if stop.is_set():
            return
        emit("loading", {"model": what})
        load = partial(draft.load, layers, measure_s=MEASURE_S, tell=lambda reached: emit(reached, {"model": what}))
        loaded = await in_ending_thread(load)
        if stop.is_set():
            return
        weights = await sharing(opened.folder) if options.shares_weights else None
        role = StageRole(joined, names, loaded, options, weights=weights)
        await run_together(network, [RunningNode(joined, role)], emit, stop)


async def _held_by_others(joined: JoinedNetwork, names: ModelNames, draft: StageDraft) -> list[LayerRange]:
    """Return the layers that other stages hold."""
    try:
        found = await joined.directory.find(Role.STAGE, names.facts.digest().hex())
    except CosineError:
        return []
    return [
        record.stage.held
        for record in found
        if record.stage is not None
        and record.target_digest == names.facts.digest()
        and record.numerics == draft.numerics
        and record.peer_id != joined.identity.peer_id
    ]


class StageRole(NodeRole):
    """A stage: its service, the thread of its passes, and its record."""

    role = Role.STAGE
    service: StageService

    def __init__(
        self,
        joined: JoinedNetwork,
        names: ModelNames,
        loaded: LoadedStage,
        options: StageOptions,
        *,
        weights: WeightsService | None = None,
    ) -> None:
        emulated = options.emulated_curve
        loaded = replace(loaded, curve=(emulated or loaded.curve).at_share(options.share))
        self.names = names
        self.emulation = options.emulation
        self.speed = PassSpeed(loaded.curve, now_s=time.monotonic())
        self.weights = weights
        model = loaded.model
        self.facts = {"numerics": model.numerics, "layers": f"{model.layers} of {model.layers.layers}"}
        self._loaded = loaded
        self._threads = Threads("engine", 1)
        self.service = StageService(
            StageHost(model, grammars=Grammars.of(names.folder) if model.layers.is_last else None),
            transport=joined.transport,
            target_digest=names.facts.digest(),
            passes=StagePasses(
                self._threads,
                least_s=None if emulated is None else loaded.curve.seconds,
                share=options.share,
                note_pass=self.speed.note,
            ),
        )

    def handlers(self) -> dict[str, StreamHandler]:
        return {STAGE: self.service.handle}

    def ready_fields(self) -> dict[str, object]:
        model = self._loaded.model
        sizes = {"weights_bytes": model.weights_bytes, "pool_tokens": model.slots}
        return {"layers": str(model.layers), "of_layers": model.layers.layers} | sizes

    def record(self) -> dict[str, Any]:
        model, service = self._loaded.model, self.service
        busy = round(1000 * service.passes.busy.share(time.monotonic()) / BUSY_STEP_PERMILLE) * BUSY_STEP_PERMILLE
        offer = StageOffer(
            first_layer=model.layers.first,
            end_layer=model.layers.end,
            layers=model.layers.layers,
            wide_tokens=WIDE_TOKENS,
            wide_pass_us=round(1e6 * self._loaded.curve.seconds(WIDE_TOKENS)),
            busy_permille=busy,
            pool_tokens=service.room_tokens,
        )
        return {
            "numerics": model.numerics,
            "capacity_requests": MAX_CHAINS,
            "context_tokens": model.context_tokens,
            "stage": offer,
        }

    def work(self) -> StageWork:
        return StageWork.of(self.service)

    def observed(self) -> "Sequence[ObservedPart]":
        from cosine_node.metrics.node import OF_STAGES, StagePool

        return ((OF_STAGES, StagePool(self.service, self._loaded.model.slots)),)

    def close(self) -> None:
        self._threads.close()
