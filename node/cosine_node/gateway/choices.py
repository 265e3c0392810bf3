"""The choices of one request, generated side by side."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosine_node.gateway.admission import Slots
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


async def generated(
    wanted: TextRequest,
    choices: Sequence[RequestedChoice],
    client: "AsyncClient",
    slots: Slots,
    observer: Observer,
    *,
    cache_scope: bytes | None = None,
) -> AsyncGenerator[ChoiceEvent, None]:
    """Events as they happen, until all choices have finished. Raises the error of the first that fails.

    Closing the generator cancels those that have not finished.
    """
    events: asyncio.Queue[ChoiceEvent | asyncio.Task[None]] = asyncio.Queue()

    async def run(choice: RequestedChoice) -> None:
        options: dict[str, Any] = {**wanted.asked, "seed": choice.seed, "stop": wanted.stop}
        async with slots():
            run = await client.start(choice.prompt, otherwise=wanted.otherwise, cache_scope=cache_scope, **options)
            events.put_nowait(ChoiceStarted(choice, run.request))
            if choice.echo:
                events.put_nowait(ChoiceText(choice, choice.echo))
            is_finished = False
            try:
                async with aclosing(run.chunks()) as chunks:
                    async for chunk in chunks:
                        if chunk.text:
                            events.put_nowait(ChoiceText(choice, chunk.text))
                is_finished = True
            finally:
                generation = run.result()
                (observer.observe if is_finished else observer.observe_abandoned)(generation)
            events.put_nowait(ChoiceFinished(choice, generation))

    tasks = [asyncio.ensure_future(run(choice)) for choice in choices]
    for task in tasks:
        task.add_done_callback(events.put_nowait)
    try:
        open_tasks = len(tasks)
        while open_tasks:
            event = await events.get()
            if isinstance(event, asyncio.Task):
                event.result()
                open_tasks -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
