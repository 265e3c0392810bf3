"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, TypeVar

from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Chunk, Generation
from cosine_p2p.run import Prompt
from cosine_protocol.records import NodeRecord

_T = TypeVar("_T")


class Client:
    """Generates text with a swarm. Use `with`, or `close` it; options as for `AsyncClient`."""

    def __init__(self, initial_peers: Sequence[str] = (), **options: Any) -> None:
        self._client = AsyncClient(initial_peers, **options)
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

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Generate to the end; options as for `AsyncClient.start`."""
        return self.submit(prompt, **options).result()

    def submit(self, prompt: Prompt, **options: Any) -> "Future[Generation]":
        """Begin to generate; cancel what is returned to end it. Options as for `AsyncClient.start`."""
        return asyncio.run_coroutine_threadsafe(self._client.generate(prompt, **options), self._loop)

    def stream(self, prompt: Prompt, **options: Any) -> Generator[Chunk, None, Generation]:
        """Generate chunk by chunk; `yield from` it gives the generation. Options as for `AsyncClient.start`."""
        chunks: SimpleQueue[Chunk | Generation | BaseException] = SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(self._pump(prompt, options, chunks), self._loop)
        try:
            while isinstance(item := chunks.get(), Chunk):
                yield item
            if isinstance(item, BaseException):
                raise item
            return item
        finally:
            future.cancel()

    def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Those a generation would be asked of now, best first. Raises as `generate`."""
        return self._run(self._client.find_verifiers())

    def close(self) -> None:
        """Leave the network."""
        if self._thread.is_alive():
            self._run(self._client.__aexit__(None, None, None))
            self._stop()

    async def _pump(
        self, prompt: Prompt, options: dict[str, Any], chunks: "SimpleQueue[Chunk | Generation | BaseException]"
    ) -> None:
        try:
            run = await self._client.start(prompt, **options)
            async with aclosing(run.chunks()) as pieces:
                async for chunk in pieces:
                    chunks.put(chunk)
            chunks.put(run.result())
        except BaseException as error:
            chunks.put(error)
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
