"""Signals: Ctrl-C ends a command at any moment with exit code 130, one line, and no child process left behind.

A closed pipe ends a command silently. Nodes finish their requests after a signal: `run_until_stopped`.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from importlib.util import find_spec
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from cosine_terminal.open_files import raise_open_files
from cosine_terminal.printing import INTERRUPT_EXIT, PIPE_EXIT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG = logging.getLogger(__name__)

GRACE_S: Final = 0.3
"""The time to say goodbye to peers, short enough to feel immediate."""

SHOW_CURSOR: Final = b"\x1b[?25h\n"
"""Shows the terminal's cursor (DECTCEM), which live displays hide, on the next line."""

_T = TypeVar("_T")


def leave_on_interrupt() -> None:
    """Let SIGINT end the program at once, even during an import."""

    def on_interrupt(*_: object) -> NoReturn:
        _fall_silent()
        leave()

    signal.signal(signal.SIGINT, on_interrupt)


def show_cursor_on_signals() -> None:
    """Let SIGQUIT and SIGTERM show the cursor, which live displays hide, before they end the program."""

    def on_signal(number: int, _: object) -> None:
        os.write(2, SHOW_CURSOR)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if os.isatty(2):
        for number in (signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, on_signal)


class ReadPipe(FileIO):
    """Standard output or error; the program ends if it writes after the reader has closed the pipe."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            leave(PIPE_EXIT)


def end_with_readers(stream: TextIOWrapper) -> TextIOWrapper:
    """Wrap a standard stream in a `ReadPipe`. SIGPIPE is no alternative, as connections to peers cause it too."""
    raw = BufferedWriter(ReadPipe(stream.fileno(), "wb", closefd=False))
    return TextIOWrapper(
        raw,
        stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def raise_on_interrupt() -> None:
    """Let SIGINT raise `KeyboardInterrupt`, for commands that handle it themselves."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_interruptibly(work: Coroutine[Any, Any, _T], *, last_words: Callable[[], None] | None = None) -> _T:
    """Run a coroutine on a new event loop; SIGINT cancels it and ends the program within `GRACE_S`.

    `last_words` is called first, to print the result so far.
    """
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
            if last_words is not None:
                last_words()
            _fall_silent()
            # In a thread, as an import may block the loop.
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
    """Report the interruption and redirect further output to nowhere, as cancelled work may still write."""
    os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + b"Interrupted.\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def leave(code: int = INTERRUPT_EXIT) -> NoReturn:
    """Kill child processes and end this one at once."""
    try:
        for child in _children():
            os.kill(child, signal.SIGKILL)
    finally:
        os._exit(code)


def _children() -> list[int]:
    """Return the child processes on Linux, elsewhere none. A network daemon also ends once it has no connection."""
    try:
        found = []
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
        return found
    except OSError:
        return []


def run_until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a node; SIGTERM or SIGINT sets the event on which it drains, a later SIGINT ends it at once.

    Raises the limit of open files. Uses uvloop if it is installed.
    """
    raise_open_files()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled_error)

        def interrupt() -> None:
            if stop.is_set():
                leave()
            stop.set()
            if sys.stderr.isatty():
                sys.stderr.write("\nStopping, once loading and requests are done; Ctrl-C again leaves at once.\n")

        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        running = asyncio.ensure_future(work(stop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running

    new_loop = None
    if find_spec("uvloop") is not None:
        import uvloop

        new_loop = uvloop.new_event_loop
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    finally:
        # uvloop leaves handlers that do nothing after it is closed.
        for number, handler in before.items():
            signal.signal(number, handler)


def log_unhandled_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task waits for, without a traceback for a peer that hangs up before its stream begins.

    The network library reads the peer's identity in its own callback, which fails for each such peer.
    """
    has_hung_up = isinstance(context.get("exception"), asyncio.IncompleteReadError)
    if has_hung_up and str(context.get("message", "")).endswith("client_connected_cb"):
        LOG.debug("a peer hung up before its stream had begun")
    else:
        loop.default_exception_handler(context)
