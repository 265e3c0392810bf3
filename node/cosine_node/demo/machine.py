"""The cores of the machine that a demo runs on, which keep roles apart."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
