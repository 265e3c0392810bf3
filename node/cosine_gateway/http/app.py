"""The gateway's Starlette application: from its values to its routes."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from cosine_gateway.admission import Admission
from cosine_gateway.api_errors import ApiError, of_failure, refusal
from cosine_gateway.chats import CHATS
from cosine_gateway.completions import COMPLETIONS
from cosine_gateway.endpoint import Endpoint, Service
from cosine_gateway.http.middleware import LOCAL_ORIGIN, HostCheck, KeyCheck, LengthCheck, RequestLog
from cosine_gateway.http.models import VerifierWatch, health_of, model_routes
from cosine_gateway.http.tokenizer import COUNTS, TOKENIZER, tokenizer_routes
from cosine_gateway.messages.reply import MESSAGES
from cosine_gateway.metrics import GenerationMetrics
from cosine_gateway.page.files import asset_routes
from cosine_gateway.page.machine import PageMachine
from cosine_gateway.page.routes import Trend, Watched
from cosine_gateway.reply import OWN_HEADERS
from cosine_gateway.responses.reply import RESPONSES
from cosine_p2p.access import Access
from cosine_p2p.client import AsyncClient
from cosine_protocol.errors import CosineError
from cosine_terminal.events import Emit

APIS: Final = (CHATS, COMPLETIONS, RESPONSES, MESSAGES)
READINGS: Final = 2
"""Maximum number of texts tokenized at once: each of the longest takes about 100 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """An operator's options.

    model_name: The name of the target in requests. Default: its own.
    api_keys: Without any, all clients may generate.
    cors_origins: Allowed origins of pages in addition to local ones.
    host_names: Allowed `Host` names in addition to private ones.
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
    trend = Trend(GenerationMetrics(registry, model_name=options.model_name), unix_s=unix_s)
    service = Service(
        client=client,
        # "cosine" always names the gateway's target.
        model_names=tuple(dict.fromkeys((options.model_name, "cosine"))),
        # A client that would wait for more than four generations is better served by another gateway.
        admission=Admission(max_running=options.max_requests, max_waiting=4 * options.max_requests, keys=keys),
        readings=Admission(max_running=READINGS, max_waiting=16 * READINGS, keys=keys),
        observer=trend,
        closing=closing,
        unix_s=unix_s,
    )
    watch = VerifierWatch(client.find_verifiers)
    page = Watched(client, trend=trend, access=options.access, machine=options.machine, closing=closing, keys=keys)
    public = [
        Middleware(LengthCheck),
        Middleware(HostCheck, names=options.host_names, origins=options.cors_origins),
    ]
    checks = [*public, Middleware(KeyCheck, keys=options.api_keys)]
    guarded = [
        *page.routes(),
        *tokenizer_routes(service, watch, {**TOKENIZER, **COUNTS}),
        *(Route(api.path, Endpoint(service, api), methods=["POST"]) for api in APIS),
        *model_routes(service, watch),
        Route("/responses/{name:path}", _stored_response, methods=["GET", "POST", "DELETE"]),
    ]

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    count_response = count_requests(registry, service.admission, options.model_name)
    return Starlette(
        routes=[
            Mount("/v1", routes=guarded, middleware=checks),
            Route("/health", health_of(client), middleware=public),
            Route("/metrics", metrics, middleware=public),
            # vLLM and llama.cpp serve them here; clients with a single base URL expect them under /v1.
            *tokenizer_routes(service, watch, TOKENIZER, checks),
            *(Route(route.path, route.endpoint, middleware=public) for route in asset_routes()),
        ],
        middleware=[Middleware(RequestLog, emit=emit, count_response=count_response), _cors(options.cors_origins)],
        exception_handlers={
            ApiError: _refuse,
            CosineError: _refuse_failure,
            HTTPException: _refuse_http,
            ClientDisconnect: _hung_up,
        },
    )


def _cors(origins: tuple[str, ...]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_origin_regex=LOCAL_ORIGIN,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        # An allowed page from the internet may ask a gateway at a local address.
        allow_private_network=True,
        expose_headers=["X-Request-Id", "Request-Id", "Retry-After", "Server-Timing", *OWN_HEADERS],
    )


async def _stored_response(_: Request) -> Response:
    message = "Nothing is stored here: send the whole conversation as input."
    raise ApiError(HTTPStatus.NOT_FOUND, message, code="not_found")


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
    """Log a client that hung up while it sent its body; this answer is not read."""
    request.state.log_fields["error"] = "the client hung up"
    return Response(status_code=HTTPStatus.BAD_REQUEST)
