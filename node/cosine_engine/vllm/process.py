"""vLLM in a child process with a separate Python, which runs `child.py`."""

import json
import mmap
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import numpy as np

from cosine_engine.base import OutOfMemory
from cosine_engine.lanes.lanes import Floats
from cosine_engine.vllm.environment import CHILD
from cosine_protocol.errors import CosineError, UsageError

ENVIRONMENT: Final = {
    # Passes run in the process that is started here, and threads are not bound to cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
END_S: Final = 5.0
"""Time limit of a process that has closed its connection."""
LOG_BYTES: Final = 4096


class ProcessLost(CosineError):
    """The process of an engine has ended, and everything that was fed is lost."""


class VllmProcess:
    """A model of vLLM in a child process, which ends with this object and this process, even if that is killed."""

    def __init__(self, python: Path, options: Mapping[str, Any], *, threads: int) -> None:
        """Start it and ask for the sizes of the model that `options` describe. Raises `UsageError`."""
        self._name = Path(options["model"]).name
        self._connection, theirs = Pipe()
        self._logits_fd = os.memfd_create("cosine-logits")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        fds = (theirs.fileno(), self._logits_fd)
        self._process = subprocess.Popen(
            # Without the variables that lead our Python to its packages.
            [str(python), "-E", str(CHILD), *map(str, (*fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=fds,
            # It ends all processes of its group.
            start_new_session=True,
            env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)},
        )
        theirs.close()
        self.end = finalize(self, _end, self._process, self._connection, self._logits_fd, self._log)
        self.sizes = self._loading(options)
        self.logits: Floats = np.empty((0, self.sizes["vocab_tokens"]), dtype=np.float32)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return not self.end.alive

    def load(self, size: Mapping[str, int]) -> None:
        """Load the model with a cache of that size. Raises `UsageError`."""
        self._loading(size)
        memory = mmap.mmap(self._logits_fd, 0)
        self.logits = np.frombuffer(memory, dtype=np.float32).reshape(-1, self.sizes["vocab_tokens"])

    def run(self, **told: Any) -> None:
        """Run a pass, whose logits are then in `logits`. Raises `OutOfMemory` or `ProcessLost`."""
        error = self._answer(told).get("error")
        if error == "memory":
            raise OutOfMemory("vLLM had no memory left for a pass.")
        if error is not None:
            self.end()
            raise ProcessLost(f"A pass of vLLM failed, which ended its process: {error}.")

    def _loading(self, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._answer(told)
        except ProcessLost as error:
            answer = {"error": str(error)}
        if "error" in answer:
            self.end()
            raise UsageError(f"{self._name} cannot be loaded by vLLM: {answer['error'].rstrip('.')}.")
        return answer

    def _answer(self, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps(told).encode())
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            code = self._process.returncode
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
            last = self._log.read().decode("utf-8", "replace").strip().rpartition("\n")[2] or "nothing"
            self.end()
            raise ProcessLost(f"The process of vLLM has ended (code {code}); its log ends with: {last}") from None
        return answer


def _end(process: "subprocess.Popen[bytes]", connection: Any, logits_fd: int, log: Any) -> None:
    """End the process with all its workers, and free what they shared with this one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
    os.close(logits_fd)
    log.close()
