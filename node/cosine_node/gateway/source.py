"""What the gateway asks of a swarm client; `cosine_p2p.AsyncClient` is one."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, Unpack

from cosine_p2p.generation import Chunk, Generation
from cosine_p2p.options import GenerationOptions, Prompt
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import Request


class Running(Protocol):
    """One generation under way; closing `chunks` cancels it."""

    @property
    def request(self) -> Request: ...

    def chunks(self) -> AsyncGenerator[Chunk, None]: ...

    def result(self) -> Generation:
        """What has come of it, once `chunks` has ended or was closed."""
        ...


class TextSource(Protocol):
    """Generates text of one target."""

    async def start(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Running:
        """Raises `PromptRefused`, another `UsageError`, or `GenerationFailed`."""
        ...

    async def find_verifiers(self) -> Sequence[NodeRecord]:
        """Who would be asked now. Raises `GenerationFailed` if nobody serves the target."""
        ...
