"""Processes of `cosine-node`, forked from one that has only imported its libraries.

They behave like the command. `tests/docs` runs commands as they are typed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TextIO

_COPIES: Final = get_context("forkserver")
_COPIES.set_forkserver_preload(["tests.e2e.prepared"])


class PreparedProcess:
    """A command as a process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], *, stdin: Path = Path(os.devnull)
    ) -> None:
        """Start `cosine-node` with these arguments and this environment; its stderr is the log."""
        # It must exist before the process, for tests that read it at once.
        log.write_bytes(b"")
        printed, stdout = _COPIES.Pipe(duplex=False)
        # A daemon in the sense of multiprocessing, which ends with this process.
        self._process = _COPIES.Process(target=_run, args=(arguments, log, environment, stdin, stdout), daemon=True)
        self._process.start()
        stdout.close()
        self.stdout: TextIO = os.fdopen(os.dup(printed.fileno()))
        printed.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("cosine-node", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], stdin: Path, stdout: Connection
) -> None:
    with stdin.open("rb") as given:
        os.dup2(given.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdout.close()
    with log.open("ab") as errors:
        os.dup2(errors.fileno(), 2)
    # The inherited objects belong to other files.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["cosine-node", *arguments]
    from cosine_cli.start import main

    main()
