"""Checks of a node's models: files, memory, and a trial load."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.models.engine_kind import has_files
from cosine_engine.models.home_model import EAGLE_SCHEME, OWN_LAYER, load_home
from cosine_engine.models.hub import HUB_ANSWER_S, HubModel, HubRefusal
from cosine_engine.models.served import MEASURE_S, ModelNames
from cosine_engine.pool_size import free_memory_bytes
from cosine_node.doctor.finding import Finding, failure, fine, refusal
from cosine_node.doctor.machine import SMALLER
from cosine_node.serving.fetched_model import local_folder
from cosine_node.serving.options import DraftOptions, HeadOptions, RoleOptions, StageOptions, VerifyOptions
from cosine_node.serving.whole_model import load_models
from cosine_node.stages.parts import size_text
from cosine_p2p.gguf.header import part_names
from cosine_protocol.errors import UsageError
from cosine_terminal.events import Emit

OTHER: Final = (
    "Give a folder, zoo:NAME or a Hugging Face id with --model; `cosine-node zoo` lists the embedded ones."
)


def names_of(options: RoleOptions) -> tuple[str, ...]:
    """The models that a node needs files of."""
    named = [options.source.model]
    if isinstance(options, DraftOptions):
        named.append(options.source.target)
    if isinstance(options, VerifyOptions) and options.home is not None:
        named.append(options.home.model.removeprefix(EAGLE_SCHEME))
    return tuple(name for name in dict.fromkeys(named) if has_files(name) and name != OWN_LAYER)


def find_model(name: str, *, is_in_parts: bool = False) -> tuple[Path | None, int, Finding]:
    """The folder of a model, or the bytes to download; and the finding."""
    what = f"model {name}"
    try:
        folder = local_folder(name)
        if folder is not None:
            weights_bytes = ModelFiles.in_folder(folder).weights_bytes
            return folder, 0, fine(what, f"it is here, {size_text(weights_bytes)} on disk")
        if is_in_parts:
            return None, 0, fine(what, "it is fetched at the first start, from nodes of the swarm or from the hub")
        hub = HubModel.parse(name)
        siblings = hub.ask(HUB_ANSWER_S, files_metadata=True).siblings or ()
    except HubRefusal as error:
        fix = f"If the machine is meant to be online, look at its network; else check the name. {OTHER}"
        found = f"it is not on this machine, and the hub does not provide it: {error.reason}"
        return None, 0, failure(what, found, fix)
    except UsageError as error:
        return None, 0, refusal(what, error, OTHER)
    ends = part_names(hub.file) if hub.file else (".safetensors",)
    download_bytes = sum(file.size or 0 for file in siblings if file.rfilename.endswith(ends))
    if not download_bytes:
        return None, 0, failure(what, "the hub has no safetensors of it", OTHER)
    found = f"it is downloaded at the first start, {size_text(download_bytes)}, and cannot be tried before"
    return None, download_bytes, fine(what, found)


def try_node(options: RoleOptions, emit: Emit, loaded: list[object], *, has_card: bool) -> Iterator[Finding]:
    """Load the models of a node as `join` does, and measure them. `loaded` keeps them alive."""
    what = f"{options.role} {options.source.model}"
    folder = local_folder(options.source.model) if has_files(options.source.model) else None
    choice, free_bytes = options.source.engine, free_memory_bytes()
    if folder is not None and not options.is_in_parts and free_bytes and (choice.device == "cpu" or not has_card):
        # A lower bound.
        weights_bytes = ModelFiles.in_folder(folder).weights_bytes
        least_bytes = weights_bytes // (4 if choice.quantize in ("int4", "int8") else 1)
        if least_bytes > free_bytes:
            found = f"its weights take {size_text(least_bytes)} or more, and {size_text(free_bytes)} are free"
            yield failure(what, found, SMALLER)
            return
    said: list[str] = []

    def note(event: str, fields: dict[str, object]) -> None:
        if event == "computes":
            said.append(str(fields["said"]))
        elif event == "loaded":
            said.append(f"its KV cache holds {fields['kv_tokens']} tokens")
        emit(event, fields)

    warned = _Warned(said)
    logging.getLogger("cosine_engine").addHandler(warned)
    try:
        began_s = time.monotonic()
        curve, models = _load(options, folder, note)
        loaded.append(models)
        took_s = time.monotonic() - began_s
    except UsageError as error:
        yield refusal(what, error, "Fetch the model again, or name another one with --model.")
        return
    finally:
        logging.getLogger("cosine_engine").removeHandler(warned)
    if curve is not None:
        said.append(f"a pass of one token takes {1e3 * curve.seconds(1):.1f} ms")
    used = (free_bytes or 0) - (free_memory_bytes() or 0)
    memory = f", it takes {size_text(used)}" if used > 0 else ""
    yield fine(what, f"loaded and tried in {took_s:.1f} s{memory}; {'; '.join(said)}".removesuffix("; "))


class _Warned(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


def _load(options: RoleOptions, folder: Path | None, emit: Emit) -> tuple[CostCurve | None, object]:
    """Load the models. Returns the cost curve, None for a head, and the models. Raises `UsageError`."""
    source = options.source
    if isinstance(options, StageOptions):
        from cosine_node.serving.stage_role import stage_draft

        assert folder is not None
        draft = stage_draft(options, folder)
        ModelNames.read(source.model, source.target, folder)
        layers = draft.choose(())
        emit("loading", {"model": f"layers {layers} of {layers.layers} of {source.model}"})
        stage = draft.load(layers, measure_s=MEASURE_S)
        return stage.curve, stage
    if isinstance(options, HeadOptions):
        from cosine_node.serving.head_role import needs_of

        assert folder is not None
        needs_of(ModelNames.read(source.model, source.target, folder), requests=options.max_requests)
        return None, load_home(options.home, emit, measure_s=MEASURE_S) if options.home is not None else None
    assert isinstance(options, DraftOptions | VerifyOptions)
    models = load_models(options, emit)
    return models[0].curve, models
