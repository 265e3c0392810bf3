"""The gateway as a Starlette application, made of a text source."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from cosine_node.gateway.access import Guard, KeyRing
from cosine_node.gateway.admission import Admission
from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.endpoint import Endpoint, Service, no_such_model
from cosine_node.gateway.envelope import Emit, Envelope
from cosine_node.gateway.health import VerifierWatch
from cosine_node.gateway.metrics import RequestMetrics
from cosine_node.gateway.replies import ChatStyle, CompletionStyle, Json
from cosine_node.gateway.source import TextSource
from cosine_node.gateway.wanted import parse_chat, parse_completion
from cosine_node.metrics import GenerationMetrics

ALIAS: Final = "cosine"
"""The name that always means the gateway's target."""

WAITING_PER_PLACE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What an operator chooses. Without `api_keys` everybody may generate; `max_requests` run at a time."""

    model_name: str
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    max_requests: int = 16


def make_app(
    source: TextSource,
    options: GatewayOptions,
    *,
    emit: Emit,
    closing: asyncio.Event,
    unix_s: Callable[[], float] = time.time,
) -> Starlette:
    """The application. Requests still under way when `closing` is set end with an error."""
    registry = CollectorRegistry()
    admission = Admission(places=options.max_requests, max_waiting=WAITING_PER_PLACE * options.max_requests)
    names = tuple(dict.fromkeys((options.model_name, ALIAS)))
    service = Service(
        source=source,
        model_names=names,
        admission=admission,
        observer=GenerationMetrics(registry, model_name=options.model_name),
        closing=closing,
        unix_s=unix_s,
    )
    watch = VerifierWatch(source)
    count_response = RequestMetrics(registry, admission, model_name=options.model_name).count_response
    cors = [_cors(options.cors_origins)] if options.cors_origins else []
    return Starlette(
        routes=[
            Mount(
                "/v1", routes=_v1(service, watch), middleware=[Middleware(Guard, keys=KeyRing(options.api_keys))]
            ),
            Route("/health", _health(watch)),
            Route("/metrics", _metrics(registry)),
        ],
        middleware=[Middleware(Envelope, emit=emit, count_response=count_response), *cors],
        exception_handlers={ApiError: _refuse, HTTPException: _refuse_http, ClientDisconnect: _hung_up},
    )


def _v1(service: Service, watch: VerifierWatch) -> list[BaseRoute]:
    """Everything that needs a key."""
    chat = Endpoint(service, parse_chat, ChatStyle())
    completions = Endpoint(service, parse_completion, CompletionStyle())
    began_s = int(service.unix_s())

    async def describe(name: str) -> Json:
        verifiers, _ = await watch.look()
        context_tokens = verifiers[0].context_tokens if verifiers else None
        return {
            "id": name,
            "object": "model",
            "created": began_s,
            "owned_by": "cosine",
            "root": service.model_names[0],
            "max_model_len": context_tokens,
        }

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [await describe(name) for name in service.model_names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.model_names:
            raise no_such_model(name, service.model_names)
        return JSONResponse(await describe(name))

    return [
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/completions", completions, methods=["POST"]),
        Route("/models", models),
        Route("/models/{name:path}", model),
    ]


def _health(watch: VerifierWatch) -> Callable[[Request], Any]:
    async def health(_: Request) -> Response:
        verifiers, reason = await watch.look()
        if reason:
            return JSONResponse({"status": "unavailable", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "ok", "verifiers": len(verifiers)})

    return health


def _metrics(registry: CollectorRegistry) -> Callable[[Request], Any]:
    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id"],
    )


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.state.facts.setdefault("error", error.message)
    return JSONResponse(error.body, error.status, headers=dict(error.headers))


async def _refuse_http(request: Request, error: Exception) -> Response:
    """What the router refuses, in the shape of all other errors."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    allowed = (error.headers or {}).get("Allow")
    message = f"{status.phrase}: {request.method} {request.url.path}." + (f" Use {allowed}." if allowed else "")
    code = status.phrase.lower().replace(" ", "_")
    return await _refuse(request, ApiError(status, message, code=code, headers=error.headers or {}))


async def _hung_up(request: Request, _: Exception) -> Response:
    """Its body never came whole; nobody reads this."""
    request.state.facts["error"] = "the client hung up"
    return Response(status_code=HTTPStatus.BAD_REQUEST)
