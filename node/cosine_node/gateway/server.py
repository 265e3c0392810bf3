"""The gateway on a socket: it joins the network, serves until stopped, and lets streams finish."""

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from cosine_node.gateway.app import GatewayOptions, make_app
from cosine_node.gateway.envelope import Emit
from cosine_protocol.errors import UsageError

DRAIN_S: Final = 20.0
CLEAN_UP_S: Final = 3
BACKLOG: Final = 256


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any free one. Raises `UsageError` if it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        # What follows in brackets says the address again.
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (")[0]
        raise UsageError(f"The gateway cannot listen on {host} port {port} ({reason}); choose another.") from None


def url_of(place: socket.socket, host: str) -> str:
    """Where a listening socket is reached over HTTP."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{place.getsockname()[1]}"


async def serve_app(
    app: ASGIApp,
    place: socket.socket,
    *,
    stop: asyncio.Event,
    closing: asyncio.Event,
    on_ready: Callable[[], None],
    drain_s: float = DRAIN_S,
) -> None:
    """Serve until `stop`, then finish what is under way; after `drain_s` set `closing` to end the rest."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(drain_s) + CLEAN_UP_S,
    )
    server = _SignalFreeServer(config, on_ready)
    stopping = asyncio.ensure_future(_stop(server, stop, closing, drain_s))
    try:
        await server.serve(sockets=[place])
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


async def serve_gateway(
    place: socket.socket,
    host: str,
    client_options: dict[str, Any],
    options: GatewayOptions,
    emit: Emit,
    stop: asyncio.Event,
) -> None:
    """Join the network as one client for all requests and serve. Raises as `AsyncClient` when it cannot join."""
    from cosine_p2p import AsyncClient

    shutting = asyncio.Event()
    url = url_of(place, host)
    with closing(place):
        async with AsyncClient(**client_options) as client:
            app = make_app(client, options, emit=emit, closing=shutting)
            ready = {"url": url, "model": options.model_name}
            await serve_app(app, place, stop=stop, closing=shutting, on_ready=lambda: emit("ready", dict(ready)))
    emit("stopped", {})


async def _stop(server: uvicorn.Server, stop: asyncio.Event, closing: asyncio.Event, drain_s: float) -> None:
    await stop.wait()
    server.should_exit = True
    await asyncio.sleep(drain_s)
    closing.set()


class _SignalFreeServer(uvicorn.Server):
    """Leaves signals to the command, and says when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
