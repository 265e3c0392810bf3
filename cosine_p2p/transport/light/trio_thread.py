"""A trio loop in a separate thread, for py-libp2p, which requires trio."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio

_T = TypeVar("_T")


class TrioThread:
    """Runs trio functions for an asyncio loop, which uses `call` and `post`; trio uses `post_back` and `spawn`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery

    @classmethod
    async def start(cls, name: str) -> "TrioThread":
        thread = cls(name)
        thread._thread.start()
        await thread._started
        return thread

    async def call(self, work: Callable[[], Awaitable[_T]], *, undo: Callable[[_T], object] | None = None) -> _T:
        """Await `work` in the trio thread; cancelling this cancels it there.

        `undo` receives a result that arrives after the caller was cancelled. Raises `trio.RunFinishedError` if the
        thread ends first.
        """
        answer: asyncio.Future[_T] = self._loop.create_future()
        scope = trio.CancelScope()

        def finish(result: _T) -> None:
            if not answer.done():
                answer.set_result(result)
            elif undo is not None:
                undo(result)

        def fail(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        async def run() -> None:
            try:
                with scope:
                    self.post_back(finish, await work())
            except Exception as error:
                self.post_back(fail, error)

        self._waiting.add(answer)
        try:
            self._token.run_sync_soon(self.spawn, run)
            return await answer
        except asyncio.CancelledError:
            self.post(scope.cancel)
            if answer.done() and not answer.cancelled() and answer.exception() is None and undo is not None:
                undo(answer.result())
            raise
        finally:
            self._waiting.discard(answer)

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a short function in the trio thread soon, in order; ignored after the thread has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *arguments)

    def post_back(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a short function in the asyncio loop soon, in order; ignored after the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def spawn(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task that runs until the thread is closed; it must not raise."""
        with suppress(RuntimeError):
            self._nursery.start_soon(work, *arguments)

    async def close(self) -> None:
        self.post(lambda: self._nursery.cancel_scope.cancel())
        await self._ended
        self._thread.join()

    def _main(self) -> None:
        async def live() -> None:
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as self._nursery:
                self.post_back(self._started.set_result, None)
                await trio.sleep_forever()

        try:
            trio.run(live)
        finally:
            self.post_back(self._give_up)

    def _give_up(self) -> None:
        for answer in (self._started, *self._waiting):
            if not answer.done():
                answer.set_exception(trio.RunFinishedError("the trio thread has ended"))
        if not self._ended.done():
            self._ended.set_result(None)
