"""Feeds of snapshots for the screen, each a slot for the latest one; a source fills it from a separate thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import Snapshot

FRAMES_PER_S: Final = 8  # Snapshots and redraws a second: smooth text that a slow terminal can draw.

STOP_TIMEOUT_S: Final = 10.0  # Time for a source to leave the swarm.


class SnapshotSource(Protocol):
    """Makes snapshots of a swarm on a separate event loop and generates in it."""

    async def run(self, publish: Callable[[Snapshot], None]) -> None:
        """Publish until cancelled. Raises `CosineError` for a permanent failure."""
        ...

    def ask(self, prompt: str, options: Options) -> None:
        """Begin a generation. Errors become part of the snapshot."""
        ...

    def cancel(self, number: int) -> None: ...


class Feed:
    """The screen's end of a source; only `start` and `close` wait. This class has no source and shows `still`."""

    def __init__(self, *still: Snapshot) -> None:
        # Only the latest snapshot is needed, and a deque needs no lock.
        self._latest: deque[Snapshot] = deque(still, maxlen=1)
        self._error: BaseException | None = None

    def start(self) -> None:
        return

    def take(self) -> Snapshot | None:
        return self._latest.pop() if self._latest else None

    def error(self) -> BaseException | None:
        return self._error

    def ask(self, prompt: str, options: Options) -> None:
        return

    def cancel(self, number: int) -> None:
        return

    def close(self) -> None:
        """End the source, and return when it has ended."""


class ThreadFeed(Feed):
    """A source in a separate thread and event loop, so that it never blocks the screen."""

    def __init__(
        self, source: SnapshotSource, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    ) -> None:
        super().__init__()
        self._source = source
        self._loop_factory = loop_factory
        self._thread = threading.Thread(target=self._run, name="cosine-tui-source", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def ask(self, prompt: str, options: Options) -> None:
        self._call(lambda: self._source.ask(prompt, options))

    def cancel(self, number: int) -> None:
        self._call(lambda: self._source.cancel(number))

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(lambda: self._main and self._main.cancel())
            self._thread.join(STOP_TIMEOUT_S)

    def _call(self, command: Callable[[], object]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(command)
        except RuntimeError:  # The loop has ended in between.
            return

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                self._loop = runner.get_loop()
                runner.run(self._until_cancelled())
        except BaseException as error:  # The thread's boundary: the screen shows the error.
            self._error = error
        finally:
            self._ready.set()

    async def _until_cancelled(self) -> None:
        self._main = asyncio.ensure_future(self._source.run(self._latest.append))
        self._ready.set()
        try:
            await self._main
        except asyncio.CancelledError:
            return
