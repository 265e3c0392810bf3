"""Commands of the documentation as processes: some run to their end, some serve until they are stopped."""

import json
import os
import pty
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

RUN_TIMEOUT_S: Final = 100.0
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
SERVERS: Final = ("cosine-node join", "cosine-node bootstrap", "cosine-node serve")
SCREEN: Final = "cosine-tui"
SCREEN_WORD: Final = b"Swarm"


def work(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command as it is meant: to its end, until it is ready to serve, or until it shows something."""
    if command.startswith(SERVERS):
        serve(command, folder, environment)
    elif command.startswith(SCREEN) and "--screenshot" not in command:
        show(command, folder, environment)
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


def show(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Start on a terminal, wait until something is on the screen, end it with SIGTERM; then it must exit with 0."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ("bash", "-c", f"exec {command}"),
        cwd=folder,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        screen = _read_until(ours, SCREEN_WORD)
        assert SCREEN_WORD in screen, screen.decode(errors="replace")
        process.send_signal(signal.SIGTERM)
        threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        assert process.wait(STOP_TIMEOUT_S) == 0
    finally:
        _end(process)


def _read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while word not in seen and (left_s := deadline_s - time.monotonic()) > 0:
        if not select.select([terminal], [], [], left_s)[0]:
            break
        try:
            seen += os.read(terminal, 65_536)
        except OSError:
            break
    return seen


def _drain(terminal: int) -> None:
    """A program whose terminal is full cannot end."""
    try:
        while os.read(terminal, 65_536):
            pass
    except OSError:
        os.close(terminal)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
