"""Whole nodes as processes of hosts of a laboratory."""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.network.laboratory import Host, Laboratory, what_is_missing

COMMAND: Final = (sys.executable, "-m", "cosine_node")
TARGET: Final = "zoo:target"
READY_S: Final = 200.0
"""For a node to be ready on a machine that has other work."""


@contextmanager
def laboratory(logs: Path | None = None, *, rtt_s: float = 0.02) -> Iterator[Laboratory]:
    """The laboratory of a command, which ends with a sentence where none can be built; `logs` keeps theirs."""
    if reason := what_is_missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, Laboratory(logs or Path(folder), rtt_s=rtt_s) as lab:
        yield lab


class Node:
    """A node that was begun in a host, with the last event of each name that it told."""

    def __init__(self, host: Host, *arguments: str) -> None:
        self.host = host
        self.events: dict[str, dict[str, Any]] = {}
        self._has_told = threading.Event()
        self.process = host.start(*COMMAND, *arguments, "--log-format", "json", log="node.log")
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def start(cls, host: Host, *arguments: str) -> "Node":
        """A node that is ready."""
        node = cls(host, *arguments)
        assert node._has_told.wait(READY_S) and node.is_ready, (host.home / "node.log").read_text()
        return node

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events[event["event"]] = event
            if self.is_ready:
                self._has_told.set()
        self._has_told.set()

    @property
    def is_ready(self) -> bool:
        return "ready" in self.events

    @property
    def ready(self) -> dict[str, Any]:
        """What it said when it was ready."""
        return self.events["ready"]

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def maddr(self) -> str:
        """Where others dial it, over TCP, if it is public."""
        return next(str(maddr) for maddr in self.ready["maddrs"] if f"/{self.host.addresses[0]}/tcp/" in maddr)

    def kill(self) -> None:
        """As a machine that is switched off, except that the system hangs up."""
        self.process.kill()
        self.process.wait()
