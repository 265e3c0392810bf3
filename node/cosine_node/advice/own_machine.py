"""The page's answers that need the packages of a node: about the machine that serves it, and about stages."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_engine.load_options import join_options
from cosine_engine.pool_size import CARD_MEMORY_PART, free_memory_bytes
from cosine_engine.processes.answer import answer_of
from cosine_node.advice.measurement import PROBE_S, find_advice, target_sizes
from cosine_node.advice.suggestions import MEMORY_PART
from cosine_node.chains.outlook import outlook_as_object, outlooks
from cosine_node.chains.planning import fit_of, served_dtype
from cosine_node.doctor.finding import Finding
from cosine_node.doctor.machine import existing_ancestor, models_folder
from cosine_node.doctor.reach import Way, connect, judge_reachability
from cosine_p2p.directory.coverage import coverage_as_objects
from cosine_p2p.survey import NodeSight
from cosine_p2p.text.target import parse_target
from cosine_p2p.transport.addresses import Scope, scope_of
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.reach import is_relayed
from cosine_protocol.records import NodeRecord
from cosine_terminal.packages import missing_packages

Json = dict[str, Any]
FRESH_S: Final = 30.0
"""Bounds the work of repeated requests."""
MAX_DIALLED: Final = 3
"""Maximum number of peers dialled to test reachability: the usual number of initial peers."""
GPUS: Final = "cosine_node.doctor.machine:gpu_names_and_bytes"
DRIVERS: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))
"""If none exists, GPUs are not searched for, as that needs a process that loads PyTorch."""


class OwnMachine:
    """A `PageMachine`. Facts about this machine are cached for `FRESH_S`; GPUs are found only once."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._measuring = asyncio.Lock()
        self._told: Json = {}
        self._valid_until_s = 0.0
        self._devices: tuple[tuple[str, int], ...] | None = None

    async def facts(self, target: str, records: Sequence[NodeRecord]) -> Json:
        loop = asyncio.get_running_loop()
        async with self._asking:
            if loop.time() >= self._valid_until_s:
                self._told = await self._gathered(_model_name(target), records)
                self._valid_until_s = loop.time() + FRESH_S
        return self._told

    async def advice(self, target: str, *, way: tuple[str, ...], nodes: Sequence[NodeSight]) -> Json:
        async with self._measuring:
            _, advice = await find_advice(_model_name(target), way=way, nodes=nodes)
        return asdict(advice)

    def stages(self, records: Sequence[NodeRecord]) -> Json:
        return {
            "coverage": coverage_as_objects(records),
            "outlook": [outlook_as_object(each) for each in outlooks(records)],
        }

    def join_options(self, numerics: str) -> tuple[str, ...]:
        return join_options(numerics)

    async def _gathered(self, target: str, records: Sequence[NodeRecord]) -> Json:
        if self._devices is None:
            self._devices = await _gpus()
        free_bytes = free_memory_bytes() or 0
        given = [int(CARD_MEMORY_PART * free) for _, free in self._devices] or [int(MEMORY_PART * free_bytes)]
        folder = models_folder()
        reach = await _reachability(records)
        return {
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": free_bytes,
            "devices": [{"name": name, "memory_bytes": free} for name, free in self._devices],
            "disk_bytes": shutil.disk_usage(existing_ancestor(folder)).free,
            "lacks": list(missing_packages()["node"]),
            "reach": {"result": reach.status, "found": reach.found, "fix": reach.fix},
            "given_bytes": max(given),
            "fits": await self._fits(target, records, max(given)),
        }

    async def _fits(self, target: str, records: Sequence[NodeRecord], memory_bytes: int) -> Json | None:
        """Return the part of the target that fits, or None if its sizes are unknown."""
        dtype = served_dtype(records)
        needs = await target_sizes(target, dtype)
        if needs is None:
            return None
        held = [each.stage.held for each in records if each.stage is not None and each.numerics == dtype]
        fit = fit_of(needs, memory_bytes, held)
        return asdict(fit) | {
            "layers": None if fit.layers is None else str(fit.layers),
            "of": needs.sizes.layers,
            "dtype": dtype,
        }


def _model_name(target: str) -> str:
    """The name or folder of a target, without its digest."""
    return target if Path(target).expanduser().exists() else parse_target(target)[0]


async def _gpus() -> tuple[tuple[str, int], ...]:
    """Return the names and free bytes of GPUs that PyTorch can use."""
    if not any(driver.exists() for driver in DRIVERS) or find_spec("torch") is None:
        return ()
    try:
        found = await asyncio.to_thread(answer_of, GPUS, timeout_s=PROBE_S)
    except (OSError, TimeoutError, ValueError):
        return ()
    return tuple((name, free_bytes) for name, free_bytes in found)


async def _reachability(records: Sequence[NodeRecord]) -> Finding:
    """Judge how others would reach a node here, by dialling a few nodes."""
    named = [each for record in records if not is_relayed(record.addresses) for each in record.addresses[:1]]
    tried = await asyncio.gather(
        *(asyncio.to_thread(connect, address, option="") for address in named[:MAX_DIALLED])
    )
    return judge_reachability(
        host_maddrs=DEFAULT_HOST_MADDRS,
        announce_maddrs=(),
        relays=(),
        ways=[way for way in tried if isinstance(way, Way)],
        local=[host for host in local_hosts(()) if scope_of(host) is not Scope.NONE],
    )
