"""The lifetime of a client: from joining to closing, in one process and on one event loop."""

import asyncio
import os

from cosine_protocol.errors import UsageError


class Lifetime:
    """A lifetime that begins and ends once, and is not valid in a forked process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    @property
    def is_of_this_process(self) -> bool:
        """False after a fork: threads, sockets and the network daemon stay with the parent."""
        return os.getpid() == self._pid

    @property
    def is_over(self) -> bool:
        return self._is_over

    def begin(self) -> None:
        """Begin on the running event loop. Raises `UsageError` if it has begun on another one."""
        self.check()
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if running is not self._loop:
            raise UsageError("The client joined on another event loop; make a client on this one.")

    def end(self) -> None:
        self._is_over = True

    def check(self) -> None:
        """Raises `UsageError` in a forked process and after the end."""
        if not self.is_of_this_process:
            raise UsageError("This client was made before the process forked; make a client after the fork.")
        if self._is_over:
            raise UsageError("The client is closed; make another one.")
