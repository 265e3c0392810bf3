"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Unpack

from cosine_p2p.client import AsyncClient, Join
from cosine_p2p.generation import Chunk, Generation
from cosine_p2p.loop_thread import LoopThread
from cosine_p2p.options import ClientOptions, GenerationOptions, Prompt, lists_options
from cosine_protocol.records import NodeRecord


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
        self._thread = LoopThread(self._client, name="cosine-client")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @lists_options(GenerationOptions)
    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generate to the end. Raises `UsageError` for what cannot be served, else `GenerationFailed`.

        Ctrl-C gives the generation up; the client stays usable.
        """
        self._thread.refuse_own_thread()
        return self._thread.wait(self.submit(prompt, **options))

    @lists_options(GenerationOptions)
    def submit(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> "Future[Generation]":
        """Begin to generate; cancel what is returned to end it. The result raises as `generate`."""
        return self._thread.submit(lambda: self._client.generate(prompt, **options))

    @lists_options(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generator[Chunk, None, Generation]:
        """Generate chunk by chunk; `yield from` it gives the generation. Raises as `generate`."""
        self._thread.refuse_own_thread()
        chunks: SimpleQueue[Chunk | Future[Generation]] = SimpleQueue()

        async def run() -> Generation:
            run = await self._client.start(prompt, **options)
            async with aclosing(run.chunks()) as pieces:
                async for chunk in pieces:
                    chunks.put(chunk)
            return run.result()

        future = self._thread.submit(run)
        future.add_done_callback(chunks.put)
        try:
            while isinstance(item := chunks.get(), Chunk):
                yield item
            return self._thread.wait(item)
        finally:
            future.cancel()

    @property
    def takes_generation_config(self) -> bool:
        """True if the model's own generation config holds where a call says nothing."""
        return self._client.takes_generation_config

    def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Find the verifiers a generation would be asked of now, best first. Raises as `generate`."""
        self._thread.refuse_own_thread()
        return self._thread.wait(self._thread.submit(self._client.find_verifiers))

    def close(self) -> None:
        """Leave the network, giving up what is under way; an interpreter that exits does so too."""
        self._thread.close()
