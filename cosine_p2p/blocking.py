"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Chunk, Generation
from cosine_p2p.run import Prompt

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
        return self._run(self._client.generate(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Chunk]:
        """Generate chunk by chunk; options as for `AsyncClient.start`."""
        chunks: SimpleQueue[Chunk | BaseException | None] = SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(self._pump(prompt, options, chunks), self._loop)
        try:
            while (item := chunks.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            future.cancel()

    def close(self) -> None:
        """Leave the network."""
        if self._thread.is_alive():
            self._run(self._client.__aexit__(None, None, None))
            self._stop()

    async def _pump(
        self, prompt: Prompt, options: dict[str, Any], chunks: "SimpleQueue[Chunk | BaseException | None]"
    ) -> None:
        try:
            async for chunk in self._client.stream(prompt, **options):
                chunks.put(chunk)
            chunks.put(None)
        except BaseException as error:
            chunks.put(error)
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
