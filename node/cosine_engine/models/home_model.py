"""The drafter inside a verifier: a small model, or a head that reads layers of the target."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_engine.base import Engine
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import CostCurve, measure_curve
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.models.loading import open_model
from cosine_engine.models.model_sizes import tokens_in
from cosine_engine.models.served import ModelSource, ServedModel, load_served
from cosine_p2p.request.model_config import read_model_config
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_engine.eagle.head_engine import DraftHead
    from cosine_engine.models.unloading import ReturnableEngine
    from cosine_engine.torch.engine import TorchEngine

EAGLE_SCHEME: Final = "eagle3:"
"""Optional prefix of the name of an EAGLE-3 head, as in other servers."""
OWN_LAYER: Final = "mtp"
"""The name of the multi-token-prediction layer in a target's checkpoint."""
POOL_TOKENS: Final = 16_384
"""Size of a head's KV cache. A request without room goes on without the head."""

LoadTarget = Callable[[ModelSource], ServedModel]
"""Loads the target of a verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeModel:
    """The drafter of a verifier. A draft head has a `target` (`cosine_node.verifier.home_drafter`)."""

    engine: Engine
    curve: CostCurve
    target: "TorchEngine | ReturnableEngine | None" = None


def load_with_home(
    source: ModelSource, home: ModelSource, emit: Emit, *, measure_s: float, grammars: Grammars | None = None
) -> tuple[ServedModel, HomeModel]:
    """Load a verifier's target and drafter. Blocks; raises `UsageError`.

    `grammars` are the constraints of engines that these replace.
    """
    head = None if home.model == OWN_LAYER else open_model(home.model.removeprefix(EAGLE_SCHEME), emit)
    target = open_model(source.model, emit)
    # Both use the compiled constraints.
    grammars = grammars or Grammars.of(target.folder, waits=True)
    load = partial(load_served, role=Role.VERIFIER, emit=emit, measure_s=measure_s, files=target, grammars=grammars)
    if head is not None and not is_eagle_head(head.folder):
        # The drafter first: the target's KV pool takes the remaining memory.
        drafter = _load_small(home, head, emit, measure_s=measure_s, grammars=grammars)
        return load(source), drafter
    from cosine_engine.eagle.head_engine import HeadEngine

    if head is None:
        loaded = _load_with_own_layer(source, target, load)
    else:
        loaded = _load_with_eagle(source, target, head, load)
    emit("measuring", {"model": home.model.removeprefix(EAGLE_SCHEME)})
    tokens = tokens_in(target.folder)
    engine = HeadEngine(
        loaded.head, loaded.target.embedding, pool_tokens=POOL_TOKENS, known_tokens=tokens, grammars=grammars
    )
    curve = measure_curve(engine, clock=time.perf_counter, budget_s=measure_s)
    return loaded.served, HomeModel(engine=engine, curve=curve, target=loaded.target)


def load_home(home: ModelSource, emit: Emit, *, measure_s: float, grammars: Grammars | None = None) -> HomeModel:
    """Load a drafter that is a separate model. Blocks; raises `UsageError`."""
    files = None if home.model == OWN_LAYER else open_model(home.model.removeprefix(EAGLE_SCHEME), emit)
    if files is None or is_eagle_head(files.folder):
        raise UsageError("A draft head needs all layers of its target, some of which other stages hold.")
    return _load_small(home, files, emit, measure_s=measure_s, grammars=grammars)


def _load_small(
    home: ModelSource, files: ModelFiles, emit: Emit, *, measure_s: float, grammars: Grammars | None
) -> HomeModel:
    if home.model.startswith(EAGLE_SCHEME):
        name = home.model.removeprefix(EAGLE_SCHEME)
        raise UsageError(f"{name!r} is not an EAGLE-3 head according to its config.json.")
    drafter = load_served(home, Role.DRAFTER, emit, measure_s=measure_s, files=files, grammars=grammars)
    return HomeModel(engine=drafter.engine, curve=drafter.curve)


def is_eagle_head(folder: Path) -> bool:
    try:
        named = read_model_config(folder).get("architectures")
    except UsageError:
        return False
    return isinstance(named, list) and any("eagle3" in str(name).lower() for name in named)


@dataclass(frozen=True, slots=True)
class _LoadedHead:
    """A served target, its engine, and a draft head that reads its layers."""

    served: ServedModel
    target: "TorchEngine"
    head: "DraftHead"


def _load_with_eagle(
    source: ModelSource, files: ModelFiles, head_files: ModelFiles, load: LoadTarget
) -> _LoadedHead:
    from cosine_engine.blocks.held_linear import hold_like
    from cosine_engine.eagle.draft_head import EagleHead
    from cosine_engine.torch.loading import read_config

    text = read_config(files.folder).get_text_config()
    head = EagleHead.load(head_files.folder, target_layers=text.num_hidden_layers)
    tokens = tokens_in(files.folder)
    head.shape.check(target_layers=text.num_hidden_layers, width=text.hidden_size, tokens=tokens)
    served, target = _load_target(source, head.shape.feature_layers, load)
    head = head.to(target.device, target.embedding.dtype)
    hold_like(target.model, head)
    return _LoadedHead(served, target, head)


def _load_with_own_layer(source: ModelSource, files: ModelFiles, load: LoadTarget) -> _LoadedHead:
    from cosine_engine.blocks.held_linear import hold_like
    from cosine_engine.eagle.mtp_head import MtpHead, MtpLayer
    from cosine_engine.torch.loading import read_config, resolve_device, resolve_dtype

    config = read_config(files.folder)
    device = resolve_device(source.engine.device)
    dtype = resolve_dtype(source.engine.dtype, device=device, config=config)
    # The layer first: the target's KV pool takes the remaining memory.
    layer = MtpLayer.load(files.folder, config, dtype=dtype).to(device)
    served, target = _load_target(source, (config.get_text_config().num_hidden_layers,), load)
    hold_like(target.model, layer)
    return _LoadedHead(served, target, MtpHead(layer, target.model))


def _load_target(
    source: ModelSource, feature_layers: tuple[int, ...], load: LoadTarget
) -> "tuple[ServedModel, TorchEngine]":
    from cosine_engine.torch.engine import TorchEngine

    served = load(replace(source, engine=replace(source.engine, feature_layers=feature_layers)))
    assert isinstance(served.engine, TorchEngine), "no other engine takes feature layers"
    return served, served.engine
