"""The drafter inside a verifier: a small model, or a head that reads layers of the target."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_engine.base import Engine
from cosine_engine.curve import CostCurve, measure_curve
from cosine_engine.models.model import ModelSource, ServedModel, fetch, load_served
from cosine_engine.models.model_sizes import tokens_in
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeModel:
    """The drafter of a verifier. A draft head has a `target` (`cosine_node.verifier.home_drafter`)."""

    engine: Engine
    curve: CostCurve
    target: "TorchEngine | ReturnableEngine | None" = None


def load_with_home(
    source: ModelSource, home: ModelSource, emit: Emit, *, measure_s: float
) -> tuple[ServedModel, HomeModel]:
    """Load a verifier's target and drafter. Blocks; raises `UsageError`."""
    if home.model == OWN_LAYER:
        return _load_with_own_layer(source, emit, measure_s=measure_s)
    name = home.model.removeprefix(EAGLE_SCHEME)
    folder = fetch(name, emit)
    if is_eagle_head(folder):
        return _load_with_head(source, name, folder, emit, measure_s=measure_s)
    # The drafter first: the target's KV pool takes the remaining memory.
    drafter = _load_small(home, folder, emit, measure_s=measure_s)
    return load_served(source, Role.VERIFIER, emit, measure_s=measure_s), drafter


def load_home(home: ModelSource, emit: Emit, *, measure_s: float) -> HomeModel:
    """Load a drafter that is a separate model. Blocks; raises `UsageError`."""
    folder = None if home.model == OWN_LAYER else fetch(home.model.removeprefix(EAGLE_SCHEME), emit)
    if folder is None or is_eagle_head(folder):
        raise UsageError("A draft head needs all layers of its target, some of which other stages hold.")
    return _load_small(home, folder, emit, measure_s=measure_s)


def _load_small(home: ModelSource, folder: Path, emit: Emit, *, measure_s: float) -> HomeModel:
    if home.model.startswith(EAGLE_SCHEME):
        name = home.model.removeprefix(EAGLE_SCHEME)
        raise UsageError(f"{name!r} is not an EAGLE-3 head according to its config.json.")
    drafter = load_served(home, Role.DRAFTER, emit, measure_s=measure_s, folder=folder)
    return HomeModel(engine=drafter.engine, curve=drafter.curve)


def is_eagle_head(folder: Path) -> bool:
    try:
        named = read_model_config(folder).get("architectures")
    except UsageError:
        return False
    return isinstance(named, list) and any("eagle3" in str(name).lower() for name in named)


def _load_with_head(
    source: ModelSource, name: str, folder: Path, emit: Emit, *, measure_s: float
) -> tuple[ServedModel, HomeModel]:
    from cosine_engine.blocks.held_linear import hold_like
    from cosine_engine.eagle.draft_head import EagleHead
    from cosine_engine.torch.loading import read_config

    target_folder = fetch(source.model, emit)
    config = read_config(str(target_folder)).get_text_config()
    head = EagleHead.load(folder, target_layers=config.num_hidden_layers)
    tokens = tokens_in(target_folder)
    head.shape.check(target_layers=config.num_hidden_layers, width=config.hidden_size, tokens=tokens)
    served, target = _load_target(source, target_folder, head.shape.feature_layers, emit, measure_s=measure_s)
    head = head.to(target.device, target.embedding.dtype)
    hold_like(target.model, head)
    return served, _measured(head, name, target, emit, tokens=tokens, measure_s=measure_s)


def _load_with_own_layer(source: ModelSource, emit: Emit, *, measure_s: float) -> tuple[ServedModel, HomeModel]:
    from cosine_engine.blocks.held_linear import hold_like
    from cosine_engine.eagle.mtp_head import MtpHead, MtpLayer
    from cosine_engine.torch.loading import read_config, resolve_device, resolve_dtype

    folder = fetch(source.model, emit)
    config = read_config(str(folder))
    device = resolve_device(source.engine.device)
    dtype = resolve_dtype(source.engine.dtype, device=device, config=config)
    # The layer first: the target's KV pool takes the remaining memory.
    layer = MtpLayer.load(folder, config, dtype=dtype).to(device)
    last = config.get_text_config().num_hidden_layers
    served, target = _load_target(source, folder, (last,), emit, measure_s=measure_s)
    hold_like(target.model, layer)
    head = MtpHead(layer, target.model)
    return served, _measured(head, OWN_LAYER, target, emit, tokens=tokens_in(folder), measure_s=measure_s)


def _load_target(
    source: ModelSource, folder: Path, feature_layers: tuple[int, ...], emit: Emit, *, measure_s: float
) -> "tuple[ServedModel, TorchEngine]":
    from cosine_engine.torch.engine import TorchEngine

    engine = replace(source.engine, feature_layers=feature_layers)
    reading = replace(source, engine=engine)
    served = load_served(reading, Role.VERIFIER, emit, measure_s=measure_s, folder=folder)
    assert isinstance(served.engine, TorchEngine), "no other engine takes feature layers"
    return served, served.engine


def _measured(
    head: "DraftHead", name: str, target: "TorchEngine", emit: Emit, *, tokens: int, measure_s: float
) -> HomeModel:
    from cosine_engine.eagle.head_engine import HeadEngine

    emit("measuring", {"model": name})
    drafter = HeadEngine(head, target.embedding, pool_tokens=POOL_TOKENS, known_tokens=tokens)
    curve = measure_curve(drafter, clock=time.perf_counter, budget_s=measure_s)
    return HomeModel(engine=drafter, curve=curve, target=target)
