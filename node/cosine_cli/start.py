"""Starts the programs `cosine` and `cosine-node`: signals, streams and memory before any import that takes long."""

import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

from cosine_terminal.interrupts import end_with_readers, leave_on_interrupt, show_cursor_on_signals

__all__ = ["ask", "main"]

COLLECTED_AFTER: Final = 50_000
"""Garbage collection threshold instead of Python's 700, which took a third of the CPU time of importing PyTorch and
transformers. Higher thresholds gain nothing."""

HEAPS: Final = 2
"""Number of malloc arenas, instead of eight per core: each arena keeps the memory that it once got."""
M_ARENA_MAX: Final = -8


def ask() -> None:
    """Run the program `cosine`, whose help shows only the commands of clients."""
    main(program="cosine")


def main(arguments: Sequence[str] | None = None, *, program: str = "cosine-node") -> None:
    """Run a command and exit: 0 on success, 2 on bad usage, 1 on failure, with one sentence on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that is not UTF-8 shows a replacement character.
            stream.reconfigure(errors="replace")
    if arguments is None and isinstance(sys.stdout, TextIOWrapper) and isinstance(sys.stderr, TextIOWrapper):
        sys.stdout, sys.stderr = map(end_with_readers, (sys.stdout, sys.stderr))
    if arguments is None and f"_{program.upper().replace('-', '_')}_COMPLETE" not in os.environ:
        # The imports below take long enough to be interrupted.
        leave_on_interrupt()
        show_cursor_on_signals()
        gc.set_threshold(COLLECTED_AFTER)
        with suppress(AttributeError, OSError):
            # Other C libraries have no such function.
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)
    from cosine_cli.program import run

    try:
        run(given, name=program)
    finally:
        if arguments is None:
            # Skip Python's final garbage collection, which takes seconds.
            gc.freeze()
