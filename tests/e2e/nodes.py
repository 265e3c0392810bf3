"""Real `cosine-node` processes on loopback."""

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.e2e.prepared_process import PreparedProcess

HOST: Final = "/ip4/127.0.0.1/tcp/0"
READY_TIMEOUT_S: Final = 240.0
COMMAND: Final = (sys.executable, "-m", "cosine_node")
DAEMON: Final = "p2pd"
TOLD_LINES: Final = 6
"""Last log lines of each node in the report of a failed test."""


@dataclass(slots=True)
class Node:
    """One long-running child. Its JSON events are read by a thread, so that none is lost."""

    name: str
    process: PreparedProcess
    log: Path
    events: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    ready: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        host: str = HOST,
        **environment: str,
    ) -> "Node":
        """Start a node with a free default identity; it logs to `folder`."""
        log = folder / f"{name}.log"
        listening = () if arguments[0] == "serve" else ("--host-maddr", host)
        given = (*arguments, *listening, "--log-format", "json")
        node = cls(name, PreparedProcess(given, log, os.environ | environment), log)
        threading.Thread(target=node._read, name=f"events of {name}", daemon=True).start()
        _open.append(node)
        return node

    def _read(self) -> None:
        with self.process.stdout as stdout:
            for line in stdout:
                self.events.put(json.loads(line))
        self.events.put(None)

    def wait_ready(self) -> "Node":
        event = self.events.get(timeout=READY_TIMEOUT_S)
        assert event is not None, f"{self.name} ended: {self.log.read_text()}"
        assert event["event"] == "ready"
        self.ready = event
        return self

    def wait_said(self, words: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        until_s = time.monotonic() + timeout_s
        while words not in (log := self.log.read_text()):
            assert time.monotonic() < until_s and self.process.poll() is None, f"{self.name} said: {log}"
            time.sleep(0.1)

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def maddr(self) -> str:
        return str(self.ready["maddrs"][0])

    def told(self) -> str:
        """Its state and last log lines for a report."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        said = self.log.read_text().splitlines()[-TOLD_LINES:] if self.log.exists() else []
        return "\n".join([f"{self.name} ({self.ready.get('peer_id', 'not ready')}) {state}", *said])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=30)

    def close(self) -> None:
        close_all([self])


_open: list[Node] = []


def open_nodes() -> tuple[Node, ...]:
    return tuple(_open)


def close_all(nodes: Sequence[Node]) -> None:
    """End the processes together, in any state."""
    for node in nodes:
        if node in _open:
            _open.remove(node)
    running = [node for node in nodes if node.process.poll() is None]
    for node in running:
        node.process.terminate()
    for node in running:
        try:
            node.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            node.kill()


@contextmanager
def starting(folder: Path, *, host: str = HOST, **environment: str) -> Iterator[Callable[..., Node]]:
    """Yield a function that starts a node by its name and arguments; all of them end together."""
    nodes: list[Node] = []

    def start(name: str, *arguments: str) -> Node:
        nodes.append(Node.start(name, arguments, folder, host=host, **environment))
        return nodes[-1]

    try:
        yield start
    finally:
        close_all(nodes)


@contextmanager
def own_home(home: Path) -> Iterator[None]:
    """Let nodes and clients begin with nothing, and leave nothing in the user's own folders or another swarm's.

    Nodes take default identities in the order they start in: what one swarm has found of an identity, or where it
    was, would be believed of the node that has it in the next.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(home / name.lower()))
        yield


def daemons_of(pid: int) -> list[int]:
    """The process ids of the p2pd that a process has started."""
    try:
        return [child.pid for child in psutil.Process(pid).children() if child.name() == DAEMON]
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; one that takes longer is killed."""
    with tempfile.TemporaryDirectory() as name:
        given, log = Path(name) / "stdin", Path(name) / "stderr"
        given.write_text(stdin, "utf-8")
        process = PreparedProcess(arguments, log, os.environ | (environment or {}), stdin=given)
        late = threading.Timer(timeout_s, process.kill)
        late.start()
        try:
            with process.stdout as stdout:
                printed = stdout.read()
            return subprocess.CompletedProcess(arguments, process.wait(), printed, log.read_text("utf-8"))
        finally:
            late.cancel()
