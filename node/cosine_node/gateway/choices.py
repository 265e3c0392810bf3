"""The choices of one request, generated side by side."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosine_node.gateway.admission import Tickets
from cosine_node.gateway.text_request import RequestedChoice, TextRequest
from cosine_p2p.request.results import Generation, Observer
from cosine_protocol.request import Request

if TYPE_CHECKING:
    from cosine_p2p.client import AsyncClient


@dataclass(frozen=True, slots=True)
class ChoiceStarted:
    """A verifier is about to be asked for this choice."""

    choice: RequestedChoice
    request: Request


@dataclass(frozen=True, slots=True)
class ChoiceText:
    """More text of this choice."""

    choice: RequestedChoice
    text: str


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """This choice has all its text."""

    choice: RequestedChoice
    generation: Generation


ChoiceEvent = ChoiceStarted | ChoiceText | ChoiceFinished


class ChoiceRuns:
    """Runs choices from `async with` on; leaving the block cancels those that have not finished."""

    def __init__(
        self,
        wanted: TextRequest,
        choices: Sequence[RequestedChoice],
        client: "AsyncClient",
        tickets: Tickets,
        observer: Observer,
        *,
        cache_scope: bytes | None = None,
    ) -> None:
        self._wanted = wanted
        self._choices = choices
        self._client = client
        self._tickets = tickets
        self._observer = observer
        self._cache_scope = cache_scope
        self._events: asyncio.Queue[ChoiceEvent | asyncio.Task[None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        for choice in self._choices:
            task = asyncio.ensure_future(self._run(choice))
            task.add_done_callback(self._events.put_nowait)
            self._tasks.append(task)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def events(self) -> AsyncGenerator[ChoiceEvent, None]:
        """Events as they happen, until all choices have finished. Raises the error of the first that fails."""
        open_tasks = len(self._tasks)
        while open_tasks:
            event = await self._events.get()
            if isinstance(event, asyncio.Task):
                event.result()
                open_tasks -= 1
            else:
                yield event

    async def _run(self, choice: RequestedChoice) -> None:
        options: dict[str, Any] = {
            **self._wanted.asked,
            "seed": choice.seed,
            "stop": self._wanted.stop,
        }
        async with self._tickets.slot():
            run = await self._client.start(
                choice.prompt, otherwise=self._wanted.otherwise, cache_scope=self._cache_scope, **options
            )
            self._events.put_nowait(ChoiceStarted(choice, run.request))
            if choice.echo:
                self._events.put_nowait(ChoiceText(choice, choice.echo))
            is_finished = False
            try:
                async with aclosing(run.chunks()) as chunks:
                    async for chunk in chunks:
                        if chunk.text:
                            self._events.put_nowait(ChoiceText(choice, chunk.text))
                is_finished = True
            finally:
                generation = run.result()
                (self._observer.observe if is_finished else self._observer.observe_abandoned)(generation)
            self._events.put_nowait(ChoiceFinished(choice, generation))
