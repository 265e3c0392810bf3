"""The memory that a model in parts needs, by its configuration alone, and the part that fits a machine."""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_engine.pool_size import AUTO
from cosine_engine.processes.answer import answer_of
from cosine_node.chains.planning import ModelNeeds
from cosine_node.stages.parts import PartSizes
from cosine_p2p.directory.coverage import lacked_most
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import DTYPES
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.stage import LayerRange

LOG = logging.getLogger(__name__)
POOL_TOKENS: Final = 8192
"""Enough for a few requests, as in `cosine-node plan`."""
PROBE_S: Final = 45.0
"""Long enough to import PyTorch on a slow disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The layers that a machine should hold as a stage, None if not even one fits, and the sizes with cache."""

    layers: LayerRange | None
    bytes: int
    is_whole: bool
    whole_bytes: int


def fit_of(needs: ModelNeeds, memory_bytes: int, held: Collection[LayerRange]) -> Fit:
    """The fit of a model for `memory_bytes`, given the layers that others hold."""
    layers = needs.sizes.layers
    whole_bytes = needs.bytes_of(LayerRange.whole(layers))
    part = lacked_most(held, layers=layers, fits=lambda one: needs.bytes_of(one) <= memory_bytes)
    return Fit(
        layers=part,
        bytes=0 if part is None else needs.bytes_of(part),
        is_whole=whole_bytes <= memory_bytes,
        whole_bytes=whole_bytes,
    )


def served_dtype(records: Collection[NodeRecord]) -> str:
    """The data type of the weights of a target's verifiers or stages; `AUTO` if none is known."""
    serving = [record for record in records if record.role != Role.DRAFTER]
    return next((record.numerics for record in serving if record.numerics in DTYPES), AUTO)


async def target_sizes(model: str, dtype: str) -> ModelNeeds | None:
    """Return the memory that a target needs, found in a child process so that a gateway need not load PyTorch.

    None if PyTorch or the model's configuration is missing.
    """
    if find_spec("torch") is None:
        return None
    try:
        answer = await asyncio.to_thread(answer_of, f"{__name__}:needs_of", model, dtype, timeout_s=PROBE_S)
    except (OSError, TimeoutError, ValueError, UsageError) as error:
        LOG.info("the sizes of %s are not known here: %s", model, error)
        return None
    sizes = answer.pop("sizes")
    return ModelNeeds(sizes=PartSizes(**sizes | {"layers_bytes": tuple(sizes["layers_bytes"])}), **answer)


def needs_of(model: str, dtype: str) -> dict[str, Any]:
    """Return the fields of `ModelNeeds`; runs in the child process. Raises `UsageError`."""
    return asdict(model_needs(model, dtype, POOL_TOKENS)[0])


def model_needs(model: str, dtype: str, pool_tokens: int) -> tuple[ModelNeeds, str]:
    """The sizes of a model with a cache of `pool_tokens`, and its numerics. Raises `UsageError`."""
    from cosine_engine import zoo
    from cosine_engine.forward.support import numerics_of, refuse_by_config
    from cosine_engine.gguf.file import GgufFile
    from cosine_engine.gguf.unfolding import unfold
    from cosine_engine.load_options import LoadOptions
    from cosine_engine.torch.loading import check_options, read_config, resolve_device, resolve_dtype
    from cosine_node.stages.opening import part_sizes

    check_options(LoadOptions(dtype=dtype, device="cpu"))
    source = zoo.resolve(model)
    file = None
    if isinstance(source, Path) and source.is_file():
        file, source = GgufFile.open(source), unfold(source)
    config: Any = read_config(str(source))
    refuse_by_config(config)
    # A machine with a GPU would choose the data type of the published weights.
    kind = config.dtype if dtype == AUTO else resolve_dtype(dtype, device=resolve_device("cpu"), config=config)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    needs = ModelNeeds(
        sizes=part_sizes(config, dtype=kind, file=file),
        layer_token_bytes=2 * heads * width * kind.itemsize,
        activation_bytes=text.hidden_size * kind.itemsize,
        pool_tokens=pool_tokens,
    )
    return needs, numerics_of(kind, None if file is None else file.weights, None)
