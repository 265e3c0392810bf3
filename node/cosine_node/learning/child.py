"""The process that learns beside a drafter: one for each order, stopped while there is something to draft."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from cosine_node.learning.worker import Answer, Comparison, Order, RoundOutcome, from_line, to_line
from cosine_protocol.errors import CosineError

COMMAND: Final = (sys.executable, "-m", "cosine_node.learning.worker")
LOG_NAME: Final = "worker.log"
"""The file in the learner's folder that holds what the last child has logged."""
ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")


class ChildFailed(CosineError):
    """The child died, or could not carry out its order."""


class LearningChild:
    """Carries out orders in a process of its own, in a process group of its own.

    Where this process dies while the child is stopped, the kernel sends the orphaned group SIGHUP and SIGCONT,
    which end it (POSIX, "orphaned process group"); one that runs sees its stdin end.
    """

    def __init__(self, folder: Path, *, command: Sequence[str] = COMMAND) -> None:
        self._folder = folder
        self._command = command
        self._process: Popen[bytes] | None = None
        self.is_paused = False

    @property
    def pid(self) -> int | None:
        """The process that carries out an order, if there is one."""
        return self._process.pid if self._process is not None else None

    async def ask(self, order: Order) -> Answer:
        """The answer of a new process. Raises `ChildFailed`; cancelled, it kills the process."""
        self._process = self._start()
        try:
            if self.is_paused:
                self._signal(signal.SIGSTOP)
            line = await asyncio.to_thread(_exchange, self._process, to_line(order))
        finally:
            # It has said all that it has to say.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        try:
            answer = from_line(line)
        except ValueError:
            said = line.decode(errors="replace").strip() or "it died"
            raise ChildFailed(f"the process that learns failed ({said}); see {self._folder / LOG_NAME}") from None
        if not isinstance(answer, RoundOutcome | Comparison):
            raise ChildFailed("the child answered with an order")
        return answer

    def _start(self) -> "Popen[bytes]":
        """A process of subprocess, not of asyncio: uvloop's have no process group."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = os.environ | ONE_THREAD
        with (self._folder / LOG_NAME).open("wb") as log:
            return Popen(self._command, stdin=PIPE, stdout=PIPE, stderr=log, process_group=0, env=environment)

    def pause(self) -> None:
        """Stop it at once, and those that are started later."""
        if not self.is_paused:
            self.is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self.is_paused:
            self.is_paused = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                # It has just ended.
                return


def _exchange(process: "Popen[bytes]", line: bytes) -> bytes:
    """Give a line to a process and wait for its answer, empty if it ends without one."""
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
