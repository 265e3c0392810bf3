"""A stage: chooses layers, loads them, joins the network, serves, and drains."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_engine.constraints.grammars import Grammars
from cosine_engine.models.served import MEASURE_S, ModelNames
from cosine_node.passes.emulation import Emulation
from cosine_node.passes.runner import PassSpeed, in_ending_thread
from cosine_node.serving.announced_node import AnnouncedNode, JoinedNetwork, claim, join, observing
from cosine_node.serving.fetched_model import open_model, sharing
from cosine_node.serving.node_options import NetworkOptions, NodeOptions
from cosine_node.serving.work import StageWork
from cosine_node.stages.host import StageHost, wanted_tensors
from cosine_node.stages.opening import WIDE_TOKENS, LoadedStage, StageDraft
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import MAX_CHAINS, StageService
from cosine_p2p.request.offload import Threads
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.patience import unless_stopped
from cosine_protocol.errors import CosineError
from cosine_protocol.records import Role, StageOffer
from cosine_protocol.stage import STAGE, LayerRange
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedStage

BUSY_STEP_PERMILLE: Final = 100
"""Rounded, as each change of the record is sent to several nodes."""


def stage_draft(options: NodeOptions, folder: Path) -> StageDraft:
    """Return the draft of the stage for a model's folder. Raises `UsageError`."""
    source, requests = options.source, options.max_requests
    return StageDraft(
        folder, source.model, source.engine, layers=options.layers, memory=options.memory, requests=requests
    )


async def run_stage(network: NetworkOptions, options: NodeOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a stage until `stop` is set; then its chains end, and their heads continue over other stages.

    Raises `UsageError` for an unusable model, layers, identity or address, and `PeerLost` if initial peers do not
    answer.
    """
    source = options.source
    async with AsyncExitStack() as stack:
        claimed, gate = claim(network, network.identity_file, stack)
        joining = partial(join, network, claimed, gate, emit, stack, stop)
        opened = await open_model(source.model, source.target, joining, emit, stop)
        if opened is None:
            return
        # For a local model, wrong options are reported before joining.
        draft = await asyncio.to_thread(stage_draft, options, opened.folder)
        names = await asyncio.to_thread(opened.names)
        joined = opened.joined or await joining()
        if joined is None:
            return
        layers = draft.named or draft.choose(await _held_by_others(joined, names, draft))
        what = f"layers {layers} of {layers.layers} of {names.model_name}"
        if opened.fetched is not None:
            is_wanted = await asyncio.to_thread(wanted_tensors, str(opened.folder), layers)
            await unless_stopped(opened.fetched.fetch(is_wanted, what=what, emit=emit), stop)
        if stop.is_set():
            return
        emit("loading", {"model": what})
        tell = lambda reached: emit(reached, {"model": what})  # noqa: E731
        loaded = await in_ending_thread(draft.load, layers, measure_s=MEASURE_S, tell=tell)
        if stop.is_set():
            return
        node = StageNode(joined, loaded, names, emulation=options.emulation, share=options.share)
        if options.shares_weights:
            node.weights = await sharing(opened.folder)
        stack.callback(node.threads.close)
        stack.enter_context(observing(network, [node]))
        await node.live(emit, stop)


async def _held_by_others(joined: JoinedNetwork, names: ModelNames, draft: StageDraft) -> list[LayerRange]:
    """Return the layers that other stages hold."""
    try:
        found = await joined.directory().find(Role.STAGE, names.facts.digest().hex())
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


class StageNode(AnnouncedNode):
    """A running stage: its service, the thread of its passes, and its record."""

    service: StageService

    def __init__(
        self,
        joined: JoinedNetwork,
        loaded: LoadedStage,
        names: ModelNames,
        *,
        emulation: Emulation | None = None,
        share: float = 1.0,
    ) -> None:
        is_emulated = emulation is not None and emulation.has_device
        if emulation is not None and is_emulated:
            loaded = replace(loaded, curve=emulation.curve(Role.STAGE))
        loaded = replace(loaded, curve=loaded.curve.at_share(share))
        self._loaded = loaded
        speed = PassSpeed(loaded.curve, now_s=time.monotonic())
        super().__init__(joined, role=Role.STAGE, names=names, speed=speed, emulation=emulation)
        self.threads = Threads("engine", 1)
        digest = names.facts.digest()
        host = StageHost(loaded.model, grammars=Grammars.of(names.folder) if loaded.model.layers.is_last else None)
        least_s = loaded.curve.seconds if is_emulated else None
        passes = StagePasses(self.threads, least_s=least_s, share=share, note_pass=speed.note)
        self.service = StageService(
            host,
            transport=joined.transport,
            target_digest=digest,
            passes=passes,
            pass_s=speed.pass_s,
            note_addresses=joined.transport.note_addresses,
        )

    def _handlers(self) -> dict[str, StreamHandler]:
        return {STAGE: self.service.handle}

    def _ready_fields(self) -> dict[str, object]:
        layers = self._loaded.model.layers
        sizes = {"weights_bytes": self._loaded.model.weights_bytes, "pool_tokens": self._loaded.model.slots}
        return super()._ready_fields() | {"layers": str(layers), "of_layers": layers.layers} | sizes

    def _record_fields(self) -> dict[str, Any]:
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

    def observed(self) -> "ObservedStage":
        from cosine_node.metrics.node import ObservedStage

        model = self._loaded.model
        return ObservedStage(
            pool_tokens=model.slots,
            service=self.service,
            **self._observed_fields(numerics=model.numerics, layers=f"{model.layers} of {model.layers.layers}"),
        )

    def _work_done(self) -> StageWork:
        return StageWork.of(self.service)

    def _end(self) -> None:
        self.threads.close()
