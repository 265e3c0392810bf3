"""The blocking client: an `AsyncClient` on an event loop in a separate thread."""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from os import PathLike
from queue import SimpleQueue
from typing import Any, Final, TypeVar, Unpack

from cosine_p2p.client import AsyncClient, AsyncTextStream, Join
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.lifetime import Lifetime
from cosine_p2p.request.options import ClientOptions, GenerationOptions, Prompt, lists_options
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import UsageError
from cosine_protocol.records import NodeRecord

_T = TypeVar("_T")

SIGNAL_CHECK_S: Final = 0.5  # A signal just before a wait for a lock is handled only when the wait ends.


class LoopThread:
    """Enters an async context on an event loop in a thread and runs coroutines there for other threads.

    Raises what entering raises. End it with `close`, which the exit of the interpreter also calls.
    """

    def __init__(self, context: AbstractAsyncContextManager[object], *, name: str) -> None:
        self._lifetime = Lifetime()
        # Held to submit work to the loop, so that none is submitted after its end.
        self._giving = threading.Lock()
        self._context = context
        self._closing = asyncio.Event()
        self._begun: set[asyncio.Task[Any]] = set()
        self._entered: Future[None] = Future()
        self._left: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._living = self._loop.create_task(self._live())
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
            atexit.register(self.close)
            _result(self._entered)
        except BaseException:
            self.close()
            raise

    def submit(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> "Future[_T]":
        """Start the coroutine of `work`; cancelling the future cancels it. Raises `UsageError` after `close`."""
        self._lifetime.check()
        with self._giving:
            self._lifetime.check()
            return asyncio.run_coroutine_threadsafe(self._noted(work), self._loop)

    def wait(self, future: "Future[_T]") -> _T:
        """Return a future's result; an interruption (Ctrl-C) cancels it. Raises `UsageError` after `close`."""
        try:
            return _result(future)
        except CancelledError:
            self._lifetime.check()
            raise
        except BaseException:
            future.cancel()
            raise

    def refuse_own_thread(self) -> None:
        """Raises `UsageError` in the loop's own thread, where waiting would deadlock."""
        if threading.current_thread() is self._thread:
            raise UsageError("A blocking call in the client's own thread would never end; use another thread.")

    def close(self) -> None:
        """Cancel all work, leave the context and end the thread. Raises what leaving raises. Idempotent."""
        atexit.unregister(self.close)
        if not self._lifetime.is_of_this_process:
            return
        with self._giving:
            self._lifetime.end()
            # If entering failed, the loop is closed already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)
        if threading.current_thread() is not self._thread:
            # Ctrl-C may have interrupted the start of the thread; it can be joined only once it has run.
            wait([self._left])
            self._thread.join()
            self._left.result()

    def _end(self) -> None:
        if not (self._closing.is_set() or self._entered.done()):
            self._living.cancel()
        self._closing.set()

    async def _noted(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._begun.add(task)
        try:
            return await work()
        finally:
            self._begun.discard(task)

    async def _live(self) -> None:
        async with self._context:
            self._entered.set_result(None)
            await self._closing.wait()
            await end_all(self._begun)

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._living)
        except BaseException as error:
            outcome = self._left if self._entered.done() else self._entered
            outcome.set_exception(error)
        finally:
            # As `asyncio.Runner` closes, but without a new thread, which cannot start at exit.
            self._loop.run_until_complete(end_all(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            if not self._left.done():
                self._left.set_result(None)


def _result(future: "Future[_T]") -> _T:
    while not future.done():
        wait([future], timeout=SIGNAL_CHECK_S)
    return future.result()


class TextStream:
    """The chunks of one generation, to be read once; `yield from` returns the generation.

    Use `with`, or `close` it, to end it early. Ctrl-C ends it.
    """

    def __init__(self, thread: LoopThread, stream: AsyncTextStream) -> None:
        """The generation begins at once."""
        chunks: SimpleQueue[Chunk | Future[Generation]] = SimpleQueue()

        # Without a reference to this object, which ends the generation when nobody reads it.
        async def read() -> Generation:
            async with stream:
                async for chunk in stream:
                    chunks.put(chunk)
                return stream.result

        self._thread, self._chunks = thread, chunks
        self._future = thread.submit(read)
        self._future.add_done_callback(chunks.put)

    @property
    def result(self) -> Generation:
        """The generation; waits for its end. Raises as `Client.generate`."""
        return self._thread.wait(self._future)

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> Chunk:
        try:
            item = self._chunks.get()
        except BaseException:
            self.close()
            raise
        if isinstance(item, Chunk):
            return item
        # The end stays the end, however often it is asked for.
        self._chunks.put(item)
        raise StopIteration(self._thread.wait(item))

    def close(self) -> None:
        """End the generation."""
        self._future.cancel()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """An `AsyncClient` for programs without asyncio. Use `with`, or `close` it. Raises the same, and `PeerLost`."""

    @lists_options(ClientOptions)
    def __init__(
        self,
        initial_peers: Sequence[str] = (),
        *,
        join: Join | None = None,
        memory: ClientMemory | str | PathLike[str] | bool | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._client = AsyncClient(initial_peers, join=join, memory=memory, **options)
        self._thread = LoopThread(self._client, name="cosine-client")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @lists_options(GenerationOptions)
    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generate a text; Ctrl-C cancels it. Raises `UsageError` or `GenerationFailed`."""
        self._thread.refuse_own_thread()
        return self._thread.wait(self.submit(prompt, **options))

    @lists_options(GenerationOptions)
    def submit(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "Future[Generation]":
        """Start a generation; cancel the future to end it. It raises as `generate`."""
        return self._thread.submit(lambda: self._client.generate(prompt, **options))

    @lists_options(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "TextStream":
        """Generate a text in chunks. Raises `UsageError` at once, and as `generate` while it is read."""
        self._thread.refuse_own_thread()
        return TextStream(self._thread, self._client.stream(prompt, **options))

    @property
    def takes_generation_config(self) -> bool:
        """True if the model's generation config provides defaults."""
        return self._client.takes_generation_config

    def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Return the target's present verifiers, best first. Raises as `generate`."""
        self._thread.refuse_own_thread()
        return self._thread.wait(self._thread.submit(self._client.find_verifiers))

    def close(self) -> None:
        """Cancel all generations and leave the network."""
        self._thread.close()
