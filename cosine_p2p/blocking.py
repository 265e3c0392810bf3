"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, TypeVar, Unpack

from cosine_p2p.client import AsyncClient, Join
from cosine_p2p.generation import Chunk, Generation
from cosine_p2p.options import ClientOptions, GenerationOptions, Prompt, lists_options
from cosine_protocol.records import NodeRecord

_T = TypeVar("_T")


class Client:
    """Generates text with a swarm. Use `with`, or `close` it.

    `initial_peers` are addresses of bootstrap nodes; `cosine_p2p.options` says what each option means. `join`
    replaces the way into the network. Raises as `AsyncClient`, and `PeerLost` if no initial peer answers.
    """

    @lists_options(ClientOptions)
    def __init__(
        self, initial_peers: Sequence[str] = (), *, join: Join | None = None, **options: Unpack[ClientOptions]
    ) -> None:
        self._client = AsyncClient(initial_peers, join=join, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cosine-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @lists_options(GenerationOptions)
    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generate to the end. Raises `UsageError` for what cannot be served, else `GenerationFailed`."""
        return self.submit(prompt, **options).result()

    @lists_options(GenerationOptions)
    def submit(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "Future[Generation]":
        """Begin to generate; cancel what is returned to end it. The result raises as `generate`."""
        return asyncio.run_coroutine_threadsafe(self._client.generate(prompt, **options), self._loop)

    @lists_options(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generator[Chunk, None, Generation]:
        """Generate chunk by chunk; `yield from` it gives the generation. Raises as `generate`."""
        chunks: SimpleQueue[Chunk | Generation | BaseException] = SimpleQueue()

        async def run() -> None:
            try:
                run = await self._client.start(prompt, **options)
                async with aclosing(run.chunks()) as pieces:
                    async for chunk in pieces:
                        chunks.put(chunk)
                chunks.put(run.result())
            except BaseException as error:
                chunks.put(error)
                raise

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            while isinstance(item := chunks.get(), Chunk):
                yield item
            if isinstance(item, BaseException):
                raise item
            return item
        finally:
            future.cancel()

    def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Find the verifiers a generation would be asked of now, best first. Raises as `generate`."""
        return self._run(self._client.find_verifiers())

    def close(self) -> None:
        """Leave the network."""
        if self._thread.is_alive():
            self._run(self._client.__aexit__(None, None, None))
            self._stop()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
