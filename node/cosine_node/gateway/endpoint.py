"""The endpoints that generate text."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from cosine_node.gateway.admission import Admission
from cosine_node.gateway.answers import ReplyWriter, StreamedReplyWriter, WholeReplyWriter
from cosine_node.gateway.api_errors import ApiError, internal, of_failure, unavailable
from cosine_node.gateway.bodies import read_object
from cosine_node.gateway.choices import ChoiceFinished, ChoiceRuns, ChoiceStarted
from cosine_node.gateway.endings import Ending, until_ended
from cosine_node.gateway.replies import Heading, Style, reason_of
from cosine_node.gateway.source import TextSource
from cosine_node.gateway.wanted import Parse, Wanted, WantedChoice
from cosine_p2p.generation import Observer
from cosine_p2p.request_log import request_name
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import CosineError

LOG = logging.getLogger(__name__)
SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What all endpoints share. `model_names` are those a request may use; `unix_s` tells the time of day."""

    source: TextSource
    model_names: tuple[str, ...]
    admission: Admission
    observer: Observer
    closing: asyncio.Event
    unix_s: Callable[[], float]


class Endpoint:
    """An ASGI application: parses a body, generates, and answers whole or as server-sent events."""

    def __init__(self, service: Service, parse: Parse, style: Style) -> None:
        self._service = service
        self._parse = parse
        self._style = style

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        wanted = self._parse(await read_object(request))
        self._check_model(wanted.model)
        seed = secrets.randbits(SEED_BITS) if wanted.seed is None else wanted.seed
        choices = wanted.choices(seed)
        answer = self._answer(wanted, seed, request.state.request_id, send)
        facts: dict[str, object] = request.state.facts
        try:
            await self._serve(wanted, choices, answer, receive, facts)
        except CosineError as error:
            facts["error"] = str(error)
            await answer.fail(of_failure(error, param=wanted.prompt_field))
        except ApiError as problem:
            facts["error"] = problem.message
            await answer.fail(problem)
        except Exception:
            if not answer.is_begun:
                raise
            # The status is sent already, but the stream can still say that it is not whole.
            LOG.exception("request %s failed", request.state.request_id)
            facts["error"] = "internal"
            await answer.fail(internal())

    def _check_model(self, name: str) -> None:
        names = self._service.model_names
        if name not in names:
            raise no_such_model(name, names)

    def _answer(self, wanted: Wanted, seed: int, request_id: str, send: Send) -> ReplyWriter:
        heading = Heading(
            style=self._style,
            request_id=request_id,
            created_s=int(self._service.unix_s()),
            model=wanted.model,
            fingerprint="",
        )
        if not wanted.is_streamed:
            return WholeReplyWriter(heading, seed=seed, send=send)
        count = len(wanted.prompts) * wanted.n
        return StreamedReplyWriter(
            heading, seed=seed, send=send, choices=count, includes_usage=wanted.includes_usage
        )

    async def _serve(
        self,
        wanted: Wanted,
        choices: Sequence[WantedChoice],
        answer: ReplyWriter,
        receive: Receive,
        facts: dict[str, object],
    ) -> None:
        names: list[str] = []
        facts["requests"] = names
        work = self._generate(wanted, choices, answer, names)
        ending = await until_ended(work, receive=receive, closing=self._service.closing)
        facts.update(_facts_of(answer.finished))
        if ending is Ending.CLOSING:
            raise unavailable("The gateway is shutting down.", code="shutting_down")
        if ending is Ending.HUNG_UP:
            facts["error"] = ending.value
            return
        await answer.end()

    async def _generate(
        self, wanted: Wanted, choices: Sequence[WantedChoice], answer: ReplyWriter, names: list[str]
    ) -> None:
        service = self._service
        with service.admission.admitted(len(choices)) as tickets:
            runs = ChoiceRuns(wanted, choices, service.source, tickets, service.observer)
            async with runs, aclosing(runs.events()) as events:
                async for event in events:
                    if isinstance(event, ChoiceStarted):
                        names.append(request_name(request_digest(event.request)))
                    await answer.take(event)


def no_such_model(name: str, names: Sequence[str]) -> ApiError:
    """Another model than the gateway's target was named."""
    message = f"There is no model {name!r} here; there is {', '.join(names)}."
    return ApiError(HTTPStatus.NOT_FOUND, message, code="model_not_found", param="model")


def _facts_of(finished: Sequence[ChoiceFinished]) -> dict[str, object]:
    """What the log says of the choices that finished; never their text."""
    generations = [each.generation for each in finished]
    return {
        "choices": len(finished),
        "prompt_tokens": sum(each.prompt_tokens for each in generations),
        "completion_tokens": sum(each.tokens for each in generations),
        "drafted": sum(each.drafted for each in generations),
        "accepted": sum(each.accepted for each in generations),
        "finish_reasons": sorted({reason_of(each) for each in finished}),
    }
