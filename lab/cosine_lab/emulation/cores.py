"""CPU affinity of measured processes."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """Two CPU cores: one for the verifier, one for the others."""

    verifier: int
    others: int

    @classmethod
    def find(cls) -> "Cores | None":
        """The first two usable cores. None with one core or without affinity on this system."""
        if not hasattr(os, "sched_setaffinity"):
            return None
        usable = sorted(os.sched_getaffinity(0))
        return cls(*usable[:2]) if len(usable) > 1 else None


@contextmanager
def on_core(core: int | Collection[int] | None) -> Iterator[None]:
    """Pin this thread, and the threads and processes that it starts, to a core or several. None for no pinning."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core} if isinstance(core, int) else core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
