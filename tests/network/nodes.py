"""Whole nodes as processes of hosts of a laboratory."""

import json
import subprocess
import sys
import threading
from typing import Any, Final

from tests.network.laboratory import Host

COMMAND: Final = (sys.executable, "-m", "cosine_node")
TARGET: Final = "zoo:target"
READY_S: Final = 200.0
"""For a node to be ready on a machine that has other work."""


class Node:
    """A node of a host, once it is ready. `ready` is what it said then."""

    def __init__(self, host: Host, process: "subprocess.Popen[str]", ready: dict[str, Any]) -> None:
        self.host = host
        self.process = process
        self.ready = ready

    @classmethod
    def start(cls, host: Host, *arguments: str) -> "Node":
        process = host.start(*COMMAND, *arguments, "--log-format", "json", log="node.log")
        assert process.stdout is not None
        late = threading.Timer(READY_S, process.kill)
        late.start()
        events = (json.loads(line) for line in process.stdout)
        ready = next((event for event in events if event["event"] == "ready"), None)
        late.cancel()
        assert ready is not None, (host.home / "node.log").read_text()
        return cls(host, process, ready)

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
