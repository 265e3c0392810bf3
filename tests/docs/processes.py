"""Documented commands as processes."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RUN_TIMEOUT_S: Final = 100.0
STOP_TIMEOUT_S: Final = 30.0
SOURCES: Final = ("lab", "node", "node/train", "protocol", "tui", ".")
SERVERS: Final = (
    *(f"cosine-node {verb}" for verb in ("draft", "verify", "stage", "head", "bootstrap")),
    "cosine serve",
)
MODULES: Final = {
    "cosine": "-m cosine_cli",
    "cosine-node": "-m cosine_node",
    "python": "",
}


def write_programs(folder: Path) -> None:
    for name, module in MODULES.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(0o755)


class Server:
    """A serving command with JSON events on stdout."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=log.parent
            )

    def first_event(self) -> dict[str, Any]:
        """The first event. Empty if the process ends without one."""
        assert self._process.stdout is not None
        event: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        return event

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        self._process.terminate()
        return self._process.wait(timeout_s)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def work(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    if command.startswith(SERVERS):
        serve(command, folder, environment)
    else:
        run(command, folder, environment)


def run(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        ("bash", "-c", command), cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, (
        f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
    )


def serve(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Start a server, wait until it is ready, and stop it; it must exit with 0."""
    log = folder / "server.log"
    server = Server(["bash", "-c", f"exec {command}"], log, {**environment, "COSINE_LOG_FORMAT": "json"})
    try:
        event = server.first_event()
        assert event.get("event") == "ready", f"{command}\n{event}\n{log.read_text()}"
        assert server.stop() == 0
    finally:
        server.close()
