"""Nodes as child processes that speak JSON events."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cosine_protocol.errors import CosineError

READY_TIMEOUT_S: Final = 150.0
"""Generous: all nodes load PyTorch and their models at once, on a machine that may have two cores."""
STOP_TIMEOUT_S: Final = 15.0
"""Longer than a node takes to say goodbye to its peers and to the DHT."""
MAX_LINE_BYTES: Final = 1 << 20
"""Bounds memory: the longest event a node may print."""


class NodeDied(CosineError):
    """A node ended before it was ready; the text holds its last words in the log."""


@dataclass(slots=True)
class NodeProcess:
    """One `cosine-node` child. `ready` and `stopped` are the first and the last event of each node in it."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    ready: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], folder: Path) -> "NodeProcess":
        """Start `cosine-node` with these arguments on loopback; logs and identity lie in `folder`."""
        log = folder / f"{name}.log"
        command = (
            *(sys.executable, "-m", "cosine_node", *arguments),
            *("--host-maddr", "/ip4/127.0.0.1/tcp/0", "--identity", str(folder / f"{name}.key")),
            *("--log-format", "json"),
        )
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=MAX_LINE_BYTES
            )
        return cls(name, process, log)

    async def wait_ready(self, nodes: int = 1) -> None:
        """Wait for the ready events of so many nodes in the process. Raises `NodeDied`."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while len(self.ready) < nodes:
                    line = await self.process.stdout.readline()
                    if not line:
                        last = self.log.read_text("utf-8", "replace").strip().splitlines()[-1:]
                        said = " ".join(last) or "it said nothing"
                        raise NodeDied(f"{self.name} ended before it was ready: {said}")
                    event = json.loads(line)
                    if event["event"] == "ready":
                        self.ready.append(event)
        except TimeoutError:
            raise NodeDied(f"{self.name} was not ready after {READY_TIMEOUT_S:g} s; see {self.log}.") from None

    @property
    def maddrs(self) -> list[str]:
        """The full addresses of its first node."""
        return list(self.ready[0]["maddrs"])

    async def stop(self) -> None:
        """SIGTERM, the last event, and SIGKILL for a node that does not end."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                out, _ = await self.process.communicate()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            return
        for line in out.splitlines():
            event = json.loads(line)
            if event.get("event") == "stopped":
                self.stopped.append(event)
