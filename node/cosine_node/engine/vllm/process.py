"""vLLM in a child process with a Python of its own, which runs `child.py`."""

import json
import mmap
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import numpy as np

from cosine_node.engine.base import OutOfMemory
from cosine_node.engine.lanes.lanes import Floats
from cosine_node.engine.vllm.environment import CHILD, child_environment
from cosine_protocol.errors import CosineError, UsageError

END_S: Final = 5.0
"""Time limit of a process that has closed its connection."""
LOG_BYTES: Final = 4096
ENVIRONMENT: Final = {
    # The passes run in the process that is started here, where threads are not bound to cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OWN_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""What would lead another Python to our packages."""


class ProcessLost(CosineError):
    """The process of an engine has ended, and everything that was fed is lost."""


class VllmProcess:
    """A model of vLLM in a child process, which ends with this object, and with this process however it ends."""

    def __init__(self, python: Path, options: Mapping[str, Any], *, threads: int) -> None:
        """Start it and ask for the sizes of the model that `options` describe. Raises `UsageError`."""
        self._name = Path(options["model"]).name
        ours, theirs = Pipe()
        self._connection: Connection[Any, Any] = ours
        self._logits_fd = os.memfd_create("cosine-logits")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [str(python), str(CHILD), str(theirs.fileno()), str(self._logits_fd), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(), self._logits_fd),
                # It ends all processes of its group.
                start_new_session=True,
                env=child_environment(OMP_NUM_THREADS=str(threads)),
            )
        finally:
            theirs.close()
        self.close = finalize(self, _end, self._process, ours, self._logits_fd, self._log)
        self.sizes = self._loading(options)
        self.logits: Floats = np.empty((0, self.sizes["vocab_tokens"]), dtype=np.float32)

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, size: Mapping[str, int]) -> None:
        """Load the model with a cache of that size. Raises `UsageError`."""
        self._loading(size)
        memory = mmap.mmap(self._logits_fd, 0)
        self.logits = np.frombuffer(memory, dtype=np.float32).reshape(-1, self.sizes["vocab_tokens"])

    def run(self, told: Mapping[str, Any]) -> None:
        """Run a pass, whose logits are then in `logits`. Raises `OutOfMemory` or `ProcessLost`."""
        answer = self._answer(told)
        if (error := answer.get("error")) == "memory":
            raise OutOfMemory("vLLM had no memory left for a pass.")
        if error is not None:
            raise ProcessLost(f"A pass of vLLM failed ({error}), and its process has ended.")

    def _loading(self, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._answer(told)
        except ProcessLost as error:
            raise UsageError(f"{self._name} cannot be loaded by vLLM: {error}") from None
        if "error" in answer:
            raise UsageError(f"{self._name} cannot be loaded by vLLM: {answer['error'].rstrip('.')}.")
        return answer

    def _answer(self, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps(told).encode())
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError, ValueError):
            words = self._last_words()
            self.close()
            raise ProcessLost(f"The process of vLLM has ended ({words}).") from None
        return answer

    def _last_words(self) -> str:
        """How it ended, and the last line of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"exit code {self._process.returncode}, it said last: {last[:200]}"


def _end(process: "subprocess.Popen[bytes]", connection: Any, logits_fd: int, log: Any) -> None:
    """End the process with all its workers, and free what they shared with this one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
    os.close(logits_fd)
    log.close()
