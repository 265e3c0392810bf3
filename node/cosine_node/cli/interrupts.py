"""Ctrl-C ends a command at any moment: exit code 130, one line, and no child process is left behind."""

import os
import signal
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, TypeVar

from cosine_node.cli.exit_codes import INTERRUPT_EXIT

GRACE_S: Final = 0.3
"""A choice below half a second, which still feels at once: time to take leave of peers."""

NEW_LINE: Final = b"\x1b[?25h\n"
"""Shows a terminal's cursor, which a picture that changes hides (DECTCEM), and leaves the line with its text."""

_T = TypeVar("_T")


def leave_on_interrupt() -> None:
    """Let SIGINT end the program at once, in the middle of an import too."""

    def on_interrupt(*_: object) -> NoReturn:
        _fall_silent()
        leave()

    signal.signal(signal.SIGINT, on_interrupt)


def raise_on_interrupt() -> None:
    """Let SIGINT raise `KeyboardInterrupt`, as Python does: for commands that take leave in their own way."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_interruptibly(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a new event loop; SIGINT cancels it and ends the program within `GRACE_S`."""
    import asyncio
    from threading import Timer

    before = signal.getsignal(signal.SIGINT)
    is_interrupted = False

    async def main() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(*_: object) -> None:
            nonlocal is_interrupted
            is_interrupted = True
            # A second one does not wait.
            leave_on_interrupt()
            _fall_silent()
            # In a thread, for the loop may stand still in an import.
            deadline = Timer(GRACE_S, leave)
            deadline.daemon = True
            deadline.start()
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGINT, interrupt)
        return await work

    try:
        return asyncio.run(main())
    finally:
        if is_interrupted:
            leave()
        signal.signal(signal.SIGINT, before)


def _fall_silent() -> None:
    """Say that the program was interrupted, and nothing more: what is cut off would complain, or draw over it."""
    os.write(2, (NEW_LINE if os.isatty(2) else b"") + b"Interrupted.\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def leave() -> NoReturn:
    """End this process and those it has started, whatever they are doing."""
    try:
        for child in _children():
            os.kill(child, signal.SIGKILL)
    finally:
        os._exit(INTERRUPT_EXIT)


def _children() -> list[int]:
    """The processes that this one has started and not yet waited for, as Linux tells; elsewhere none.

    A network daemon also ends by itself once nothing is connected to it.
    """
    try:
        found = []
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
        return found
    except OSError:
        return []
