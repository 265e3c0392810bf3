"""Processes of hosts that exchange JSON with a test, one value a line."""

import asyncio
import json
import queue
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, Final

from tests.network.laboratory import Host

READY_S: Final = 200.0
"""Bounds the start of a process on a busy machine."""


class JsonProcess:
    """A process of a host. `hear` fails with its log when it ends, and with `queue.Empty` when it is silent."""

    def __init__(self, host: Host, *command: str, **environment: str) -> None:
        self.host = host
        self._log = f"{type(self).__name__}.log"
        self.process = host.start(*command, log=self._log, **environment)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def say(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self, within_s: float = READY_S) -> dict[str, Any]:
        line = self._lines.get(timeout=within_s)
        assert line is not None, (self.host.home / self._log).read_text()
        return line

    def kill(self) -> None:
        """End the process like a machine that is switched off, except that the system closes its connections."""
        self.process.kill()
        self.process.wait()


async def orders() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
