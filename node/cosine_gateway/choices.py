"""The choices of one request, generated concurrently."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from cosine_gateway.admission import Slots, Spend
from cosine_gateway.text_request import RequestedChoice, TextRequest
from cosine_p2p.client import AsyncClient
from cosine_p2p.replies.parts import Content, Part
from cosine_p2p.request.logprobs import NamedToken
from cosine_p2p.request.options import Prompt
from cosine_p2p.request.origins import TokenOrigin
from cosine_p2p.request.results import Chunk, Generation, Observer, Usage
from cosine_p2p.text.prompt import EncodedPrompt, encode_prompt, read_prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.request import Request


@dataclass(frozen=True, slots=True)
class ChoiceStarted:
    """The event before a verifier is asked for this choice. `serving` returns its current verifiers."""

    choice: RequestedChoice
    request: Request
    serving: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True, slots=True)
class ChoicePart:
    """The next part of this choice; always `Content` in a completion.

    `logprobs` and `origins` describe the tokens that came with it, if they were requested; the text may then be
    empty.
    """

    choice: RequestedChoice
    part: Part
    logprobs: tuple[NamedToken, ...] = ()
    origins: tuple[TokenOrigin, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The event after the last part of this choice."""

    choice: RequestedChoice
    generation: Generation


ChoiceEvent = ChoiceStarted | ChoicePart | ChoiceFinished


async def generated(
    wanted: TextRequest,
    choices: Sequence[RequestedChoice],
    client: AsyncClient,
    slots: Slots,
    observer: Observer,
    *,
    cache_scope: bytes | None = None,
) -> AsyncGenerator[ChoiceEvent, None]:
    """Yield events until all choices have finished. Raises the error of the first choice that fails.

    Closing the generator cancels the unfinished choices.
    """
    events: asyncio.Queue[ChoiceEvent | asyncio.Task[None]] = asyncio.Queue()
    # The choices of a prompt share its encoding.
    encoded = (
        [await client.encode(prompt) for prompt in wanted.prompts] if wanted.n > 1 and wanted.is_plain else None
    )

    async def run(choice: RequestedChoice) -> None:
        prompt = choice.prompt if encoded is None else encoded[choice.index // wanted.n]
        async with (
            slots() as spend,
            aclosing(_events_of(wanted, choice, prompt, client, observer, spend, cache_scope)) as own,
        ):
            async for event in own:
                events.put_nowait(event)

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


async def _events_of(
    wanted: TextRequest,
    choice: RequestedChoice,
    prompt: Prompt | EncodedPrompt,
    client: AsyncClient,
    observer: Observer,
    spend: Spend,
    cache_scope: bytes | None,
) -> AsyncGenerator[ChoiceEvent, None]:
    """Yield the events of one choice. Raises as the client does."""
    echo = ""
    tokens: tuple[int, ...] = ()
    if not wanted.is_plain:
        tokens, echo = await client.with_tokenizer(partial(_read, wanted, choice.prompt))
    tells_prompt = wanted.asked.get("prompt_logprobs") is not None
    if not (wanted.is_generating or tells_prompt):
        yield ChoicePart(choice, Content(echo))
        yield ChoiceFinished(choice, _nothing_after(tokens, choice.seed))
        return
    prompt = prompt if wanted.adds_special_tokens else tokens
    options: dict[str, Any] = {**wanted.asked, "seed": choice.seed}
    if not wanted.is_generating:
        # Scoring a prompt generates one token, which is dropped.
        options |= {"max_new_tokens": 1, "min_tokens": None}
    run = await client.start(prompt, otherwise=wanted.otherwise, cache_scope=cache_scope, **options)
    spend(len(run.request.prompt))
    yield ChoiceStarted(choice, run.request, lambda: run.progress().serving)
    if echo and not tells_prompt:
        yield ChoicePart(choice, Content(echo))
    is_told = is_finished = False
    try:
        async with aclosing(run.chunks()) as chunks:
            async for chunk in chunks:
                spend(len(chunk.token_ids))
                if tells_prompt and not is_told:
                    is_told = True
                    yield ChoicePart(choice, Content(echo), run.prompt_logprobs)
                if wanted.is_generating:
                    for part in _parts_of(choice, chunk, tells_origins=wanted.tells_provenance):
                        yield part
        is_finished = True
    finally:
        generation = run.result()
        (observer.observe if is_finished else observer.observe_abandoned)(generation)
    if not wanted.is_generating:
        usage = replace(generation.usage, completion_tokens=0)
        generation = replace(generation, text="", token_ids=(), usage=usage, logprobs=(), finish_reason="length")
    yield ChoiceFinished(choice, generation)


def _parts_of(choice: RequestedChoice, chunk: Chunk, *, tells_origins: bool) -> Iterator[ChoicePart]:
    """Yield the parts of a chunk; the first has all log-probabilities and origins."""
    origins = chunk.origins if tells_origins else ()
    parts = chunk.parts or ((Content(""),) if chunk.logprobs or origins else ())
    for index, part in enumerate(parts):
        yield ChoicePart(choice, part, *(((), ()) if index else (chunk.logprobs, origins)))


def _read(wanted: TextRequest, prompt: Prompt, codec: TextTokenizer) -> tuple[tuple[int, ...], str]:
    """Return the token ids of a prompt and, if it is echoed, its text. Raises `PromptRefused`."""
    checked = read_prompt(prompt)
    if isinstance(checked, str):
        adds = wanted.adds_special_tokens
        tokens = encode_prompt(codec, checked) if adds else codec.encode(checked, add_special_tokens=False)
        return tokens, checked if wanted.is_echoed else ""
    tokens = encode_prompt(codec, checked)
    return tokens, text_of_tokens(codec, tokens) if wanted.is_echoed else ""


def text_of_tokens(codec: TextTokenizer, tokens: Sequence[int]) -> str:
    """Decode token ids, special ones included."""
    parts = groupby(tokens, key=lambda token: bool(codec.special_text(token)))
    return "".join(
        "".join(map(codec.special_text, run)) if is_special else codec.decode(list(run))
        for is_special, run in parts
    )


def _nothing_after(prompt: Sequence[int], seed: int) -> Generation:
    """The result of a request for no tokens, which needs no verifier."""
    return Generation(
        text="",
        token_ids=(),
        finish_reason="length",
        seed=seed,
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=0),
        seconds=0.0,
        time_to_first_token_s=0.0,
    )
