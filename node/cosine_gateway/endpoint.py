"""The endpoints that generate text."""

import asyncio
import logging
import reprlib
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from cosine_gateway.admission import Admission
from cosine_gateway.api_errors import ApiError, internal, of_failure, unavailable
from cosine_gateway.body import parse_object, read_body
from cosine_gateway.choices import ChoiceStarted, generated
from cosine_gateway.reply import Api, ReplyContext, ReplyWriter, reason_of
from cosine_gateway.text_request import TextRequest
from cosine_p2p.client import AsyncClient, draw_seed
from cosine_p2p.request.results import Observer
from cosine_p2p.session.request_log import request_name
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import CosineError
from cosine_protocol.verify import CACHE_SCOPE_BYTES, USER_BYTES

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The parts that all endpoints share.

    `admission` admits generations, `readings` requests that need only the tokenizer. `model_names` are the names
    that requests may use; the first is the target's. `unix_s` is the clock. When `closing` is set, running requests
    end with an error. `secret` separates the cached prefixes of API keys.
    """

    client: AsyncClient
    model_names: tuple[str, ...]
    admission: Admission
    readings: Admission
    observer: Observer
    closing: asyncio.Event
    unix_s: Callable[[], float]
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)

    def model_named(self, name: str | None) -> str:
        """Return the model name of a request. Default: the gateway's own. Raises `ApiError`."""
        if name and name not in self.model_names:
            raise no_such_model(name, self.model_names)
        return name or self.model_names[0]


class Endpoint:
    """An ASGI application for one API: reads a request, generates, and replies whole or in server-sent events."""

    def __init__(self, service: Service, api: Api) -> None:
        self._service = service
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # A full queue refuses a request before its body is parsed.
        self._service.admission.check(request.state.key.hex())
        body = parse_object(await read_body(request))
        wanted = self._api.parse(body)
        context = ReplyContext(
            body=body,
            wanted=wanted,
            request_id=request.state.request_id,
            created_s=int(self._service.unix_s()),
            model=self._service.model_named(wanted.model),
            seed=draw_seed() if wanted.seed is None else wanted.seed,
        )
        writer = ReplyWriter(self._api.reply(context), send)
        log_fields: dict[str, object] = request.state.log_fields
        async with writer.stream.kept_alive():
            try:
                if wanted.depends_on_template:
                    wanted = await self._service.client.with_tokenizer(wanted.fitted)
                await self._reply(wanted, writer, receive, log_fields, request.state.key)
            except CosineError as error:
                log_fields["error"] = str(error)
                await writer.fail(of_failure(error, param=wanted.prompt_field))
            except ApiError as problem:
                log_fields["error"] = problem.message
                await writer.fail(problem)
            except Exception:
                if not writer.stream.is_begun:
                    raise
                # The status has been sent, but the stream can still end with an error.
                LOG.exception("request %s failed", request.state.request_id)
                log_fields["error"] = "internal"
                await writer.fail(internal())

    async def _reply(
        self, wanted: TextRequest, writer: ReplyWriter, receive: Receive, log_fields: dict[str, object], key: bytes
    ) -> None:
        """Generate and write until the reply is complete, its client hangs up, or the gateway closes."""
        service = self._service
        request_names: list[str] = []
        log_fields["requests"] = request_names
        scope = cache_scope_of(key, wanted.cache_salt.encode(), secret=service.secret)

        async def generate() -> None:
            choices = wanted.choices(writer.reply.context.seed)
            with service.admission.admitted(len(choices), key=key.hex()) as slots:
                events = generated(wanted, choices, service.client, slots, service.observer, cache_scope=scope)
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, ChoiceStarted):
                            request_names.append(request_name(request_digest(event.request)))
                        await writer.take(event)

        ending = await until_ended(generate(), receive=receive, closing=service.closing)
        # Never the text.
        finished = writer.reply.finished
        generations = [each.generation for each in finished]
        log_fields |= {
            "choices": len(generations),
            "prompt_tokens": sum(each.usage.prompt_tokens for each in generations),
            "completion_tokens": sum(each.usage.completion_tokens for each in generations),
            "drafted": sum(each.swarm.drafted for each in generations),
            "accepted": sum(each.swarm.accepted for each in generations),
            "finish_reasons": sorted({reason_of(each) for each in finished}),
        }
        match ending:
            case Ending.DONE:
                await writer.end()
            case Ending.HUNG_UP:
                log_fields["error"] = "the client hung up"
            case Ending.CLOSING:
                raise unavailable("The gateway is shutting down.", code="shutting_down")


def cache_scope_of(key: bytes, salt: bytes, *, secret: bytes) -> bytes | None:
    """Return the scope of a key's cached prefixes, or None without key and salt.

    Prefixes are shared only within a scope, so that response times reveal nothing about prompts of other keys or
    salts. The scope begins with a pseudonym of the key, so that verifiers count a key with many salts once.
    """
    if not (key or salt):
        return None
    user = blake2b(key, key=secret, digest_size=USER_BYTES).digest()
    return (
        user + blake2b(key + salt, key=secret, digest_size=CACHE_SCOPE_BYTES - USER_BYTES, person=b"salt").digest()
    )


def no_such_model(name: str, names: Sequence[str]) -> ApiError:
    """The error for a model that the gateway does not serve."""
    message = f"The model {reprlib.repr(name)} does not exist; the gateway serves {', '.join(names)}."
    return ApiError(HTTPStatus.NOT_FOUND, message, code="model_not_found", param="model")


class Ending(Enum):
    """The reason why work ended."""

    DONE = "done"
    HUNG_UP = "hung up"
    CLOSING = "closing"


async def until_ended(work: Coroutine[Any, Any, None], *, receive: Receive, closing: asyncio.Event) -> Ending:
    """Run `work`; cancel it if the client hangs up or `closing` is set. Raises what `work` raises."""

    async def hang_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    hanging_up = asyncio.ensure_future(hang_up())
    closed = asyncio.ensure_future(closing.wait())
    tasks = (working, hanging_up, closed)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if working in done:
        working.result()
        return Ending.DONE
    return Ending.HUNG_UP if hanging_up in done else Ending.CLOSING
