"""The machine that a demo runs on: two cores that roles are kept apart on, and what its processor is good at."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CPU_INFO: Final = Path("/proc/cpuinfo")
FAST_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""A processor with one of these multiplies bfloat16 as fast as float32 or faster; others emulate it."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The numbers of two cores: the verifier's own, and the one that all others share."""

    verifier: int
    others: int

    @classmethod
    def find(cls) -> "Cores | None":
        """The first two that this process may use; None where there is but one, or where none can be chosen."""
        if not hasattr(os, "sched_setaffinity"):
            return None
        usable = sorted(os.sched_getaffinity(0))
        return cls(*usable[:2]) if len(usable) > 1 else None


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keep this thread on a core meanwhile, and with it every thread and process that it starts; None for any."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def has_fast_bfloat16() -> bool:
    """True if the processor is known to compute fast in bfloat16."""
    flags = {flag for value in _cpu_values("flags") for flag in value.split()}
    return not FAST_BFLOAT16.isdisjoint(flags)


def processor_name() -> str:
    """What the system calls this machine's processor."""
    names = _cpu_values("model name")
    return f"{names[0] if names else os.uname().machine}, {os.cpu_count()} cores"


def _cpu_values(key: str) -> list[str]:
    """The values of a key in what Linux tells of its processors."""
    try:
        lines = CPU_INFO.read_text("utf-8").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
