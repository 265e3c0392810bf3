"""All texts of one request, generated side by side."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from cosine_node.gateway.admission import Tickets
from cosine_node.gateway.source import Running, TextSource
from cosine_node.gateway.wanted import Wanted, WantedChoice
from cosine_p2p.generation import Generation, Observer
from cosine_protocol.request import Request


@dataclass(frozen=True, slots=True)
class ChoiceStarted:
    """A verifier is about to be asked for this choice."""

    choice: WantedChoice
    request: Request


@dataclass(frozen=True, slots=True)
class ChoiceText:
    """More text of this choice."""

    choice: WantedChoice
    text: str


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """This choice has all its text."""

    choice: WantedChoice
    generation: Generation


Event = ChoiceStarted | ChoiceText | ChoiceFinished


class ChoiceRuns:
    """Runs choices from `async with` on; leaving the block cancels what has not finished."""

    def __init__(
        self,
        wanted: Wanted,
        choices: Sequence[WantedChoice],
        source: TextSource,
        tickets: Tickets,
        observer: Observer,
    ) -> None:
        self._choices = choices
        self._source = source
        self._tickets = tickets
        self._observer = observer
        sampling = asdict(wanted.sampling)
        del sampling["seed"]
        self._options: dict[str, Any] = {
            **sampling,
            "max_new_tokens": wanted.max_new_tokens,
            "stop": wanted.stop,
        }
        self._news: asyncio.Queue[Event | asyncio.Task[None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        for choice in self._choices:
            task = asyncio.ensure_future(self._run(choice))
            task.add_done_callback(self._news.put_nowait)
            self._tasks.append(task)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def events(self) -> AsyncGenerator[Event, None]:
        """What happens, as it happens, until all have finished. Raises what the first that fails raises."""
        open_tasks = len(self._tasks)
        while open_tasks:
            news = await self._news.get()
            if isinstance(news, asyncio.Task):
                news.result()
                open_tasks -= 1
            else:
                yield news

    async def _run(self, choice: WantedChoice) -> None:
        async with self._tickets.place():
            run = await self._source.start(choice.prompt, seed=choice.seed, **self._options)
            self._news.put_nowait(ChoiceStarted(choice, run.request))
            if choice.lead:
                self._news.put_nowait(ChoiceText(choice, choice.lead))
            await self._relay(choice, run)

    async def _relay(self, choice: WantedChoice, run: Running) -> None:
        is_finished = False
        try:
            async with aclosing(run.chunks()) as chunks:
                async for chunk in chunks:
                    if chunk.text:
                        self._news.put_nowait(ChoiceText(choice, chunk.text))
            is_finished = True
        finally:
            generation = run.result()
            (self._observer.observe if is_finished else self._observer.observe_abandoned)(generation)
        self._news.put_nowait(ChoiceFinished(choice, generation))
