"""The gateway's Starlette application."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from cosine_gateway.admission import Admission, admitted_object
from cosine_gateway.api_errors import ApiError, of_failure, refusal
from cosine_gateway.body import text
from cosine_gateway.endpoint import Endpoint, Service, no_such_model
from cosine_gateway.http.middleware import LOCAL_ORIGIN, HostCheck, KeyCheck, LengthCheck, RequestLog
from cosine_gateway.messages.reply import message_writer
from cosine_gateway.messages.request import counted, parse_message
from cosine_gateway.metrics import GenerationMetrics
from cosine_gateway.page.files import asset_routes
from cosine_gateway.page.machine import PageMachine
from cosine_gateway.page.routes import Trend, Watched
from cosine_gateway.replies import CHAT, COMPLETION, choices_writer
from cosine_gateway.reply_writer import OWN_HEADERS, Json, own_config
from cosine_gateway.responses.reply import response_writer
from cosine_gateway.responses.request import input_tokens, parse_response
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import parse_chat, parse_completion
from cosine_gateway.tokens import Answer, described, detokenized, rendered, tokenized
from cosine_p2p.access import Access
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.model_defaults import apply_defaults, default_sampling
from cosine_p2p.survey import Surveyor
from cosine_protocol.errors import CosineError, GenerationFailed
from cosine_protocol.records import NodeRecord
from cosine_terminal.events import Emit

# Probes come every few seconds, and each look-up asks several peers: a compromise between freshness and traffic.
FRESH_S: Final = 15.0
RETRY_S: Final = 2.0
LOOK_UP_TIMEOUT_S: Final = 6.0
"""Less than the 10 s after which most load balancers give up a probe."""
ANSWER_S: Final = 3.0
"""The timeout for the status of a verifier: half of a look-up's."""
READINGS: Final = 2
"""Maximum number of texts tokenized at once: each of the longest takes about 100 MiB."""


class VerifierWatch:
    """Caches found verifiers for `FRESH_S`, and their absence for `RETRY_S`.

    `find_verifiers` may raise a `CosineError`.
    """

    def __init__(self, find_verifiers: Callable[[], Awaitable[Sequence[NodeRecord]]]) -> None:
        self._find_verifiers = find_verifiers
        self._looking = asyncio.Lock()
        self._valid_until_s = 0.0
        self._found: tuple[NodeRecord, ...] = ()
        self._reason = ""

    async def look(self) -> tuple[Sequence[NodeRecord], str]:
        """Return the latest verifiers, best first, and the reason if there are none, else ""."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() >= self._valid_until_s:
                try:
                    async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                        self._found, self._reason = tuple(await self._find_verifiers()), ""
                except CosineError as error:
                    self._found, self._reason = (), str(error)
                except TimeoutError:
                    self._found, self._reason = (), f"The network did not answer within {LOOK_UP_TIMEOUT_S:.0f} s."
                self._valid_until_s = loop.time() + (FRESH_S if self._found else RETRY_S)
        return self._found, self._reason


async def find_answering(client: AsyncClient) -> list[NodeRecord]:
    """Return the verifiers that answer now, at least one. Raises as `AsyncClient.find_verifiers`."""
    announced = await client.find_verifiers()
    surveyor = Surveyor(client.swarm, target=client.target, ask_timeout_s=ANSWER_S)
    try:
        found = [sight.record for sight in await surveyor.look_at(announced) if not sight.reason]
    finally:
        await surveyor.close()
    if not found:
        raise GenerationFailed(f"None of {len(announced)} announced verifiers answers.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """An operator's options.

    model_name: The name of the target in requests. Default: its own.
    api_keys: Without any, everybody may generate.
    cors_origins: Allowed origins of pages besides local ones.
    host_names: Allowed `Host` names besides private ones.
    access: The network, which the page invites others to.
    machine: Answers the page's questions about this machine. Default: they are refused.
    max_requests: Maximum number of generations at once.
    """

    model_name: str
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)
    machine: PageMachine | None = None
    max_requests: int = 16


def make_app(
    client: AsyncClient,
    options: GatewayOptions,
    *,
    emit: Emit,
    closing: asyncio.Event,
    unix_s: Callable[[], float] = time.time,
) -> Starlette:
    """Return the application. When `closing` is set, running requests end with an error."""
    registry = CollectorRegistry()
    keys = len(set(options.api_keys)) or 1
    admission = Admission(
        max_running=options.max_requests,
        # A client that would wait for more than four generations is better served by another gateway.
        max_waiting=4 * options.max_requests,
        keys=keys,
    )
    trend = Trend(GenerationMetrics(registry, model_name=options.model_name), unix_s=unix_s)
    service = Service(
        client=client,
        # "cosine" always names the gateway's target.
        model_names=tuple(dict.fromkeys((options.model_name, "cosine"))),
        admission=admission,
        readings=Admission(max_running=READINGS, max_waiting=16 * READINGS, keys=keys),
        observer=trend,
        closing=closing,
        unix_s=unix_s,
    )
    watch = VerifierWatch(client.find_verifiers)
    answering = VerifierWatch(partial(find_answering, client))
    watched = Watched(
        client, trend=trend, access=options.access, machine=options.machine, closing=closing, keys=keys
    )

    async def health(_: Request) -> Response:
        verifiers, reason = await answering.look()
        if reason:
            return JSONResponse({"status": "unavailable", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "ok", "verifiers": len(verifiers)})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    open_to_all = [
        Middleware(LengthCheck),
        Middleware(HostCheck, names=options.host_names, origins=options.cors_origins),
    ]
    checks = [*open_to_all, Middleware(KeyCheck, keys=options.api_keys)]
    count_response = count_requests(registry, admission, options.model_name)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(options.cors_origins),
        allow_origin_regex=LOCAL_ORIGIN,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        # An allowed page from the internet may ask a gateway at a local address.
        allow_private_network=True,
        expose_headers=["X-Request-Id", "Request-Id", "Retry-After", "Server-Timing", *OWN_HEADERS],
    )
    middleware = [Middleware(RequestLog, emit=emit, count_response=count_response), cors]
    return Starlette(
        routes=[
            Mount("/v1", routes=[*watched.routes(), *_v1_routes(service, watch)], middleware=checks),
            Route("/health", health, middleware=open_to_all),
            Route("/metrics", metrics, middleware=open_to_all),
            # vLLM and llama.cpp serve them here; clients with a single base URL expect them under /v1.
            *_token_routes(service, watch, checks),
            *(Route(route.path, route.endpoint, middleware=open_to_all) for route in asset_routes()),
        ],
        middleware=middleware,
        exception_handlers={
            ApiError: _refuse,
            CosineError: _refuse_failure,
            HTTPException: _refuse_http,
            ClientDisconnect: _hung_up,
        },
    )


def _v1_routes(service: Service, watch: VerifierWatch) -> list[BaseRoute]:
    """The routes of OpenAI's and Anthropic's APIs, which need a key."""
    began_s = int(service.unix_s())

    async def describe(name: str) -> Json:
        verifiers, _ = await watch.look()
        context = verifiers[0].context_tokens if verifiers else None
        takes_config = bool(verifiers) and service.client.takes_generation_config
        published = default_sampling(verifiers[0], asked={}, otherwise=CHAT_DEFAULTS) if takes_config else None
        return {
            "id": name,
            "object": "model",
            "created": began_s,
            # Anthropic's clients read these.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(began_s, UTC).isoformat(),
            "owned_by": "cosine",
            "root": service.model_names[0],
            # The names of vLLM, OpenRouter and llama.cpp.
            "max_model_len": context,
            "context_length": context,
            "meta": {"n_ctx": context, "n_ctx_train": context},
            "generation_config": own_config(apply_defaults(published, asked={}, otherwise=CHAT_DEFAULTS)),
        }

    async def models(_: Request) -> Response:
        data = [await describe(name) for name in service.model_names]
        # Anthropic's clients request pages; this is the only one.
        pages = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JSONResponse({"object": "list", "data": data, **pages})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.model_names:
            raise no_such_model(name, service.model_names)
        return JSONResponse(await describe(name))

    async def stored_response(_: Request) -> Response:
        message = "Nothing is stored here: send the whole conversation as input."
        raise ApiError(HTTPStatus.NOT_FOUND, message, code="not_found")

    return [
        *_token_routes(service, watch),
        Route("/chat/completions", Endpoint(service, parse_chat, choices_writer(CHAT)), methods=["POST"]),
        Route("/completions", Endpoint(service, parse_completion, choices_writer(COMPLETION)), methods=["POST"]),
        Route("/responses", Endpoint(service, parse_response, response_writer), methods=["POST"]),
        _answered(service, watch, "/responses/input_tokens", input_tokens),
        Route("/responses/{name:path}", stored_response, methods=["GET", "POST", "DELETE"]),
        Route("/messages", Endpoint(service, parse_message, message_writer), methods=["POST"]),
        _answered(service, watch, "/messages/count_tokens", counted),
        Route("/models", models),
        Route("/models/{name:path}", model),
    ]


def _token_routes(service: Service, watch: VerifierWatch, checks: Sequence[Middleware] = ()) -> list[BaseRoute]:
    """The routes of the target's tokenizer and template."""

    async def info(_: Request) -> Response:
        return JSONResponse(await service.client.with_tokenizer(described))

    return [
        Route("/tokenizer_info", info, middleware=checks),
        *(
            _answered(service, watch, path, answer, checks)
            for path, answer in (
                ("/tokenize", tokenized),
                ("/detokenize", detokenized),
                ("/apply-template", rendered),
            )
        ),
    ]


def _answered(
    service: Service, watch: VerifierWatch, path: str, answer: Answer, checks: Sequence[Middleware] = ()
) -> BaseRoute:
    """A route whose requests the target's tokenizer answers."""

    async def reply(request: Request) -> Response:
        async with admitted_object(request, service.readings) as body:
            service.model_named(None if body.get("model") is None else text(body["model"], "model"))
            try:
                said = await service.client.with_tokenizer(partial(answer, body))
            except CosineError as error:
                raise of_failure(error, param="input" if "input" in body else "messages") from None
        if "count" in said:
            verifiers, _ = await watch.look()
            said["max_model_len"] = verifiers[0].context_tokens if verifiers else None
        return JSONResponse(said)

    return Route(path, reply, methods=["POST"], middleware=checks)


def count_requests(registry: CollectorRegistry, admission: Admission, model_name: str) -> Callable[[int], None]:
    """Register gauges of running and waiting generations; return a function that counts a response's status."""
    for name, help_text, count in (
        ("num_requests_running", "Generations that run.", lambda: admission.running),
        ("num_requests_waiting", "Generations that wait for a slot.", lambda: admission.waiting),
    ):
        gauge = Gauge(f"cosine:{name}", help_text, ("model_name",), registry=registry)
        gauge.labels(model_name).set_function(count)
    responses = Counter("cosine:http_responses", "HTTP responses, by status.", ("status",), registry=registry)
    return lambda status: responses.labels(str(status)).inc()


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer with an error in the format of the requested API."""
    assert isinstance(error, ApiError)
    request.state.log_fields.setdefault("error", error.message)
    return refusal(error, path=request.url.path, request_id=request.state.request_id)


async def _refuse_failure(request: Request, error: Exception) -> Response:
    """Answer a failure of the network or the target."""
    assert isinstance(error, CosineError)
    request.state.log_fields["error"] = str(error)
    return await _refuse(request, of_failure(error, param="model"))


async def _refuse_http(request: Request, error: Exception) -> Response:
    """Answer an error of the router."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    allowed = (error.headers or {}).get("Allow")
    message = f"{status.phrase}: {request.method} {request.url.path}." + (f" Use {allowed}." if allowed else "")
    code = status.phrase.lower().replace(" ", "_")
    return await _refuse(request, ApiError(status, message, code=code, headers=error.headers or {}))


async def _hung_up(request: Request, _: Exception) -> Response:
    """Log a client that hung up while it sent its body; nobody reads this answer."""
    request.state.log_fields["error"] = "the client hung up"
    return Response(status_code=HTTPStatus.BAD_REQUEST)
