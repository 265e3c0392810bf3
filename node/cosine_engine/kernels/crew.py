"""Threads that compute a kernel together.

Each computes its share of every step and waits for the others between steps. A pass has a hundred or more steps of
some microseconds each, less than it takes to sleep and wake. A waiting thread polls a number in memory for some ten
microseconds, and then yields to other threads of the machine, which may be the one that it waits for.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, NamedTuple

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cosine_engine.kernels.compilation import compiled

THREAD_WEIGHTS: Final = 1 << 22
"""Least number of weights of a kernel for each of its threads."""
COLUMNS: Final = 32
"""Columns that one thread computes at once: a group of the inputs of another matrix."""
TURNS: Final = 2000
"""How often a thread looks for the others before it lets other threads run."""
HAS_PAUSE: Final = llvmlite.binding.get_default_triple().startswith("x86_64")
RUNNING: Final = threading.Lock()
"""Held by a kernel with several threads: two would wait for each other's."""


@intrinsic  # type: ignore[untyped-decorator]
def _add(typing: Any, address: Any, value: Any) -> Any:
    """Add atomically to the int64 at an address, and return the sum."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del context, signature
        pointer = builder.inttoptr(given[0], given[1].type.as_pointer())
        return builder.add(builder.atomic_rmw("add", pointer, given[1], "seq_cst"), given[1])

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _wait(typing: Any, is_long: Any) -> Any:
    """Wait for a moment; with `is_long` let other threads run."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        with builder.if_else(given[0]) as (long, short):
            with long:
                kind = ir.FunctionType(ir.IntType(32), [])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
            with short:
                if HAS_PAUSE:
                    kind = ir.FunctionType(ir.VoidType(), [])
                    builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(types.boolean), generate


class Thread(NamedTuple):
    """One of the `threads` of a kernel."""

    number: int
    threads: int
    arrivals: int
    """The address of an int64, 0 at first."""


@compiled
def meet(thread: Thread) -> None:
    """Wait until all threads have called this."""
    if thread.threads > 1:
        goal = (_add(thread.arrivals, 1) + thread.threads - 1) // thread.threads * thread.threads
        turns = 0
        while _add(thread.arrivals, 0) < goal:
            turns += 1
            _wait(turns > TURNS)


@compiled
def share(total: int, thread: Thread) -> tuple[int, int]:
    """Return the first number of a thread's share of `total` numbers, and the first one after it."""
    return total * thread.number // thread.threads, total * (thread.number + 1) // thread.threads


@compiled
def columns_of(width: int, thread: Thread) -> tuple[int, int]:
    """Return the first column of a thread's share of `width`, and the first one after it."""
    first, last = share((width + COLUMNS - 1) // COLUMNS, thread)
    return first * COLUMNS, min(last * COLUMNS, width)


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "kernel")


def threads_for(weights: int, most: int) -> int:
    """Return the number of threads, at most `most`, of a kernel that reads this number of weights."""
    return max(1, min(most, weights // THREAD_WEIGHTS))


def run(kernel: Callable[..., Any], threads: int, *arguments: Any) -> Any:
    """Call a kernel in some threads, with `arguments` and a `Thread`.

    Returns the result of thread 0.
    """
    arrivals = np.zeros(1, np.int64)
    address = arrivals.ctypes.data
    if threads == 1:
        return kernel(*arguments, Thread(0, 1, address))
    with RUNNING:
        others = [
            _workers(threads).submit(kernel, *arguments, Thread(number, threads, address))
            for number in range(1, threads)
        ]
        found = kernel(*arguments, Thread(0, threads, address))
        for each in others:
            each.result()
    return found
