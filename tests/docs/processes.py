"""Commands of the documentation as processes: some run to their end, some serve until they are stopped."""

import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

RUN_TIMEOUT_S: Final = 100.0
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
SERVERS: Final = ("cosine-node join", "cosine-node bootstrap", "cosine-node serve")


def work(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command as it is meant: to its end, or until it is ready to serve."""
    if command.startswith(SERVERS):
        serve(command, folder, environment)
    else:
        run(command, folder, environment)


def run(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run to the end; it must succeed, and show no traceback."""
    done = subprocess.run(
        ("bash", "-c", command), cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, (
        f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
    )


def serve(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Start, wait until it is ready, and end it with SIGTERM; then it must exit with 0."""
    with (folder / "server.log").open("w+b") as log:
        process = subprocess.Popen(
            ("bash", "-c", f"exec {command}"),
            cwd=folder,
            env={**environment, "COSINE_LOG_FORMAT": "json"},
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            event = _first_event(process)
            assert event.get("event") == "ready", f"{command}\n{event}\n{(folder / 'server.log').read_text()}"
            process.terminate()
            assert process.wait(STOP_TIMEOUT_S) == 0
        finally:
            _end(process)


def _first_event(process: "subprocess.Popen[bytes]") -> dict[str, object]:
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
    event: dict[str, object] = json.loads(lines.get(timeout=READY_TIMEOUT_S))
    return event


def _pass_on(stdout: IO[bytes], lines: "queue.SimpleQueue[bytes]") -> None:
    for line in stdout:
        lines.put(line)
    lines.put(b"{}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
