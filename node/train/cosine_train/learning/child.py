"""The learning process of a drafter: one for each order, stopped while requests are served.

Orders and answers are pickled. `worker`, which takes seconds to import, carries them out.
"""

import asyncio
import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from cosine_protocol.errors import CosineError
from cosine_train.learning.decision import Acceptance

COMMAND: Final = (sys.executable, "-m", "cosine_train.learning.worker")
LOG_NAME: Final = "worker.log"
"""The log of the last child, in the learner's folder."""
ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrder:
    """Learn from the streams in a learner's `folder`, and write the version of this number.

    `base` is the folder of the initial weights, `shipped` that of the model as the volunteer named it, of the GGUF
    type `kind`, if any. `target` is the folder of the target's tokenizer.
    """

    folder: str
    number: int
    base: str
    shipped: str
    kind: str | None
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The outcome of a round: right first choices on held-out streams before and after it.

    `nll_before` and `nll` are the mean negative log-likelihood of the project's prompts by domain, of the weights
    as shipped and of the new ones.
    """

    before: Acceptance
    after: Acceptance
    trained_tokens: int
    steps: int
    seconds: float
    nll_before: dict[str, float] = field(default_factory=dict)
    nll: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOrder:
    """Compare two folders of weights along the streams with numbers above `after` in a learner's `folder`."""

    folder: str
    earlier: str
    live: str
    target: str
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Right first choices of both versions, along the same streams."""

    earlier: Acceptance
    live: Acceptance


Order = RoundOrder | ComparisonOrder
Answer = RoundOutcome | Comparison


class ChildFailed(CosineError):
    """The child died, or could not carry out its order."""


class LearningChild:
    """Carries out orders in a separate process with a separate process group.

    If this process dies while the child is stopped, the kernel sends the orphaned group SIGHUP and SIGCONT, which
    end it (POSIX, "orphaned process group"); a running child reads the end of its stdin.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: Popen[bytes] | None = None
        self.is_paused = False

    @property
    def pid(self) -> int | None:
        """The id of the process that carries out an order, if any."""
        return self._process.pid if self._process is not None else None

    async def ask(self, order: Order) -> Answer:
        """Return the answer of a new process. Raises `ChildFailed`; cancelling it kills the process."""
        self._process = self._start()
        try:
            if self.is_paused:
                self._signal(signal.SIGSTOP)
            data = await asyncio.to_thread(_exchange, self._process, pickle.dumps(order))
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        try:
            answer: Answer | str = pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            answer = "it died"
        if isinstance(answer, str):
            raise ChildFailed(f"the process that learns failed ({answer}); see {self._folder / LOG_NAME}")
        return answer

    def _start(self) -> "Popen[bytes]":
        """Start a process with subprocess: those of uvloop have no process group."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = os.environ | ONE_THREAD
        with (self._folder / LOG_NAME).open("wb") as log:
            return Popen(COMMAND, stdin=PIPE, stdout=PIPE, stderr=log, process_group=0, env=environment)

    def pause(self) -> None:
        """Stop the process, and those that are started later."""
        if not self.is_paused:
            self.is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process."""
        if self.is_paused:
            self.is_paused = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            # The process may just have ended.
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _exchange(process: "Popen[bytes]", order: bytes) -> bytes:
    """Write an order to a process and return its answer, empty if it ends without one."""
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            process.stdin.write(order)
            process.stdin.flush()
            return process.stdout.read()
        except BrokenPipeError:
            return b""
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
