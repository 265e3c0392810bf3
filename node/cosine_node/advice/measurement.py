"""Measures this machine and the sizes of models in child processes, which load PyTorch, and advises what to run."""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_engine import zoo
from cosine_engine.pool_size import AUTO, free_memory_bytes
from cosine_engine.processes.answer import answer_of
from cosine_node.advice.servers import find_servers
from cosine_node.advice.suggestions import Advice, MeasuredMachine, TargetSwarm, advise
from cosine_node.chains.planning import ModelNeeds, served_dtype
from cosine_node.stages.parts import PartSizes
from cosine_p2p.survey import NodeSight
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_terminal.packages import INSTALL

LOG = logging.getLogger(__name__)
POOL_TOKENS: Final = 8192
"""Enough for a few requests, as in `cosine-node plan`."""
PROBE_S: Final = 45.0
"""Long enough to import PyTorch on a slow disk."""
MEASURING_S: Final = 20.0
"""Bounds each of two measurements. A drafter that takes longer to load and compile is not judged."""
MEASURE_S: Final = 1.0
READ_BYTES: Final = 256 << 20
"""More than the caches of most processors hold."""


async def find_advice(
    target: str, *, way: tuple[str, ...] = (), nodes: Sequence[NodeSight] = ()
) -> tuple[MeasuredMachine, Advice]:
    """The measurement of this machine, and advice for a target with these nodes. Raises `UsageError`."""
    reached = tuple(sight for sight in nodes if not sight.reason)
    needs = await target_sizes(target, served_dtype([sight.record for sight in reached]))
    here = await asyncio.to_thread(measure_machine, target)
    return here, advise(here, TargetSwarm(target=target, needs=needs, way=way, nodes=reached))


def measure_machine(target: str = "") -> MeasuredMachine:
    """Measure memory and the embedded drafter of a target, and find servers. Blocks; raises `UsageError`."""
    if find_spec("torch") is None:
        raise UsageError(f"A machine is measured with PyTorch, which is missing. {INSTALL['node']}")
    drafters: list[tuple[str, float | None, int]] = []
    failures = (OSError, TimeoutError, ValueError, UsageError)
    try:
        cards, read_bytes_per_s = answer_of(f"{__name__}:memory", timeout_s=MEASURING_S)
    except failures as error:
        raise UsageError(f"This machine cannot be measured: {error}; `cosine-node doctor` says more.") from None
    if target.startswith(zoo.SCHEME):
        model = zoo.default_drafter(target)
        with suppress(*failures):
            drafters.append((model, *answer_of(f"{__name__}:drafting", model, target, timeout_s=MEASURING_S)))
    return MeasuredMachine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=free_memory_bytes() or import_module("psutil").virtual_memory().available,
        read_bytes_per_s=read_bytes_per_s,
        cards=tuple((name, free_bytes) for name, free_bytes in cards),
        drafters=(*drafters, *((model, None, 0) for model in find_servers())),
    )


def memory() -> tuple[Sequence[tuple[str, int]], float]:
    """The cards, and the bytes that the first one or the processor adds up a second; runs in a child process."""
    from cosine_node.doctor.machine import gpu_names_and_bytes

    torch, cards, took_s = import_module("torch"), gpu_names_and_bytes(), []
    numbers = torch.ones(READ_BYTES // 4, device="cuda" if cards else "cpu")
    until_s = time.perf_counter() + MEASURE_S
    while (began_s := time.perf_counter()) < until_s:
        numbers.sum().item()
        took_s.append(time.perf_counter() - began_s)
    return cards, READ_BYTES / min(took_s)


def drafting(model: str, target: str) -> tuple[float, int]:
    """The seconds of a drafter's token, and the bytes of its process; runs in a child process."""
    from cosine_engine.models.served import ModelSource, load_served

    source = ModelSource(model=model, target=target)
    served = load_served(source, Role.DRAFTER, lambda *_: None, measure_s=MEASURE_S)
    return served.curve.seconds(1), import_module("psutil").Process().memory_info().rss


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
