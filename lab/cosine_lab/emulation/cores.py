"""CPU affinity of measured processes."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cosine_protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class Cores:
    """Two CPU cores: one for the verifier, one for the others."""

    verifier: int
    others: int

    @classmethod
    def find(cls) -> "Cores":
        """The first two usable cores. Raises `UsageError` with a single core, or without control of them."""
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(usable) < 2:
            raise UsageError("--cores needs Linux and two processor cores, one for the verifier.")
        return cls(*usable[:2])


@contextmanager
def on_core(core: int | Collection[int]) -> Iterator[None]:
    """Pin this thread, and the threads and processes that it starts, to a core or several."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core} if isinstance(core, int) else core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
