"""Measures this machine, with all that loads PyTorch in child processes, and judges what it could run."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from cosine_engine import zoo
from cosine_engine.pool_size import free_memory_bytes
from cosine_engine.processes.answer import answer_of
from cosine_node.advice.servers import find_servers
from cosine_node.advice.suggestions import Advice, MeasuredMachine, TargetSwarm, advise
from cosine_node.chains.model_needs import served_dtype, target_sizes
from cosine_p2p.survey import NodeSight
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_terminal.packages import INSTALL

MEASURING_S: Final = 20.0
"""Bounds each of two measurements. A drafter that takes longer to load and compile is not judged."""
MEASURE_S: Final = 1.0
READ_BYTES: Final = 256 << 20
"""More than the caches of most processors hold."""


async def find_advice(
    target: str, *, way: tuple[str, ...] = (), nodes: Sequence[NodeSight] = ()
) -> tuple[MeasuredMachine, Advice]:
    """What was measured here, and what to run for a target with these nodes. Raises `UsageError`."""
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
