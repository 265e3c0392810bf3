"""The blocking client: an `AsyncClient` on an event loop in a separate thread."""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from os import PathLike
from queue import SimpleQueue
from typing import Any, Final, TypeVar, Unpack

from cosine_p2p.client import AsyncClient, Join, Lifetime
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.request.options import ClientOptions, GenerationOptions, Prompt, lists_options
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.session.run import AsyncTextStream
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import UsageError
from cosine_protocol.records import NodeRecord

_T = TypeVar("_T")

SIGNAL_CHECK_S: Final = 0.5  # A signal just before a wait for a lock is handled only when the wait ends.


class LoopThread:
    """Runs coroutines on an event loop in a thread, for other threads, and at its end `closing`.

    End it with `close`, which the exit of the interpreter also calls.
    """

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._lifetime = Lifetime()
        # Held to submit work to the loop, so that none is submitted after its end.
        self._giving = threading.Lock()
        self._at_end = closing
        self._closing = asyncio.Event()
        self._begun: set[asyncio.Task[Any]] = set()
        self._left: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
            atexit.register(self.close)
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
        """Raise `UsageError` in the loop's own thread, where waiting would deadlock."""
        if threading.current_thread() is self._thread:
            raise UsageError("A blocking call in the client's own thread would never end; use another thread.")

    def end(self) -> None:
        """Let the thread cancel all work, run `closing` and end, and do not wait for it. Idempotent."""
        if not self._lifetime.is_of_this_process:
            return
        with self._giving:
            self._lifetime.end()
            # The loop may be closed already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)

    def close(self) -> None:
        """End the thread and wait for it. Raises what `closing` raises. Idempotent."""
        atexit.unregister(self.close)
        self.end()
        if self._lifetime.is_of_this_process and threading.current_thread() is not self._thread:
            # Ctrl-C may have interrupted the start of the thread; it can be joined only once it has run.
            wait([self._left])
            self._thread.join()
            self._left.result()

    async def _noted(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._begun.add(task)
        try:
            return await work()
        finally:
            self._begun.discard(task)

    async def _live(self) -> None:
        await self._closing.wait()
        await end_all(self._begun)
        await self._at_end()

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._left.set_exception(error)
        finally:
            # As `asyncio.Runner` closes, but without a new thread, which cannot start at exit.
            self._loop.run_until_complete(end_all(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            atexit.unregister(self.close)
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

    def __init__(self, thread: LoopThread, stream: AsyncTextStream, *, client: "Client | None" = None) -> None:
        """Begin the generation. The stream references the client, whose collection would end the generation."""
        chunks: SimpleQueue[Chunk | Future[Generation]] = SimpleQueue()

        # Holds no reference to this object, whose collection ends the generation.
        async def read() -> Generation:
            async with stream:
                async for chunk in stream:
                    chunks.put(chunk)
                return stream.result

        self._thread, self._chunks, self._client = thread, chunks, client
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
        # Every later call also ends the iteration.
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
    """A client that generates text with a swarm, for programs without asyncio and any number of threads.

    It joins the network with its first call, and leaves it at the end of its `with` block, by `close`, or when it
    is garbage-collected. What it learns about peers is kept for later clients.

    Args:
        initial_peers: Addresses of nodes of the network, or an invitation.
        memory: File for what the client learns about peers; `False` for none. Default: one in the state folder of
            the user, or none with `join`.
        join: For tests.
        options: Those of `ClientOptions`. Options of a generation are the defaults of all calls.

    Raises `UsageError` for invalid options.
    """

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
        self._thread = LoopThread(self._client.close, name="cosine-client")

    def __enter__(self) -> "Client":
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (thread := getattr(self, "_thread", None)) is not None:
            thread.end()

    def connect(self) -> None:
        """Join the network now; otherwise the first call does. Raises `UsageError` or `PeerLost`."""
        self._thread.refuse_own_thread()
        self._thread.wait(self._thread.submit(self._client.connect))

    @lists_options(GenerationOptions)
    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generate a text; Ctrl-C cancels it. Raises `UsageError`, `PeerLost` or `GenerationFailed`."""
        self._thread.refuse_own_thread()
        return self._thread.wait(self.submit(prompt, **options))

    @lists_options(GenerationOptions)
    def submit(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "Future[Generation]":
        """Start a generation; cancel the future to end it. The future raises as `generate`."""
        future = self._thread.submit(lambda: self._client.generate(prompt, **options))
        # The future keeps a reference to this client.
        future.add_done_callback(self._outlive)
        return future

    def _outlive(self, _: "Future[Generation]") -> None: ...

    @lists_options(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "TextStream":
        """Generate a text in chunks. Raises `UsageError` at once, and as `generate` while it is read."""
        self._thread.refuse_own_thread()
        return TextStream(self._thread, self._client.stream(prompt, **options), client=self)

    @property
    def takes_generation_config(self) -> bool:
        """True if the model's generation config provides defaults."""
        return self._client.takes_generation_config

    def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Return the target's present verifiers, best first. Raises as `generate`."""
        self._thread.refuse_own_thread()
        return self._thread.wait(self._thread.submit(self._client.find_verifiers))

    def close(self) -> None:
        """Cancel all generations and leave the network. Idempotent."""
        self._thread.close()
