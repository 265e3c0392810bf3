"""The gateway's server process: joins the network, serves until stopped, and lets streams finish."""

import asyncio
import logging
import math
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cosine_gateway.http.app import GatewayOptions, make_app
from cosine_p2p.client import AsyncClient
from cosine_p2p.transport.patience import unless_stopped
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.errors import GenerationFailed, UsageError
from cosine_terminal.events import Emit
from cosine_terminal.open_files import raise_open_files

LOG = logging.getLogger(__name__)

DRAIN_S: Final = 20.0
"""The same as for nodes, so that a generation on a node that stops too can finish."""

LOOK_AGAIN_S: Final = 2.0
"""The pause between look-ups of a first verifier."""
HEADER_S: Final = 10.0
"""The timeout for a header, which is one or two packets; longer than uvicorn's keep-alive."""


MAX_IDLE_EACH: Final = 4096
"""Maximum number of idle connections of an address, which may be a proxy; each takes about 10 KiB."""
SAY_AGAIN_S: Final = 60.0


class IdleConnections:
    """The idle connections by address, oldest first.

    Of the `files` that this process may open, idle connections of one address may use a quarter, and all
    connections three quarters. Beyond either limit, the oldest idle connections are closed.
    """

    def __init__(self, files: int) -> None:
        self._most_each = min(MAX_IDLE_EACH, files // 4)
        self._most = files - files // 4
        self._of: defaultdict[str, dict[DeadlineProtocol, None]] = defaultdict(dict)
        self._silent_until_s = 0.0

    def add(self, connection: "DeadlineProtocol", *, connections: int) -> None:
        """Add an idle connection; `connections` is the number of all connections."""
        line = self._of[connection.address]
        line[connection] = None
        if len(line) <= self._most_each:
            if connections <= self._most:
                return
            line = max(self._of.values(), key=len)
        now_s = connection.loop.time()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + SAY_AGAIN_S
            oldest = next(iter(line))
            LOG.warning(
                "%d of %d connections are idle connections of %s: closing the oldest to free file descriptors",
                *(len(line), connections, oldest.address),
            )
        next(iter(line)).close()

    def discard(self, connection: "DeadlineProtocol") -> None:
        """Remove a connection that is no longer idle."""
        line = self._of[connection.address]
        line.pop(connection, None)
        if not line:
            del self._of[connection.address]


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for headers; it registers its idle connections in `idle`."""

    def __init__(self, idle: IdleConnections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle = idle
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_deadline()
        else:
            self._expect_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    def close(self) -> None:
        """Close the idle connection."""
        self._forget_deadline()
        self.transport.close()

    def _expect_header(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_S, self.transport.close)
            self._idle.add(self, connections=len(self.connections))

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._idle.discard(self)


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free one. Raises `UsageError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        # The backlog is larger than the number of requests that a gateway admits by default.
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        # The parentheses that follow repeat the address.
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (")[0]
        raise UsageError(f"The gateway cannot listen on {host} port {port} ({reason}); choose another.") from None


def url_of(listener: socket.socket, host: str) -> str:
    """Return the URL of a listening socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    closing: asyncio.Event,
    on_ready: Callable[[], None],
    drain_s: float = DRAIN_S,
) -> None:
    """Serve until `stop`, then finish running requests; after `drain_s` set `closing` to end the rest."""

    async def drain_when_stopped() -> None:
        await stop.wait()
        server.should_exit = True
        await asyncio.sleep(drain_s)
        closing.set()

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        # Called once for each connection.
        http=cast("type[asyncio.Protocol]", partial(DeadlineProtocol, IdleConnections(raise_open_files()))),
        ws="none",
        server_header=False,
        # Requests that are closed after the drain still write an error.
        timeout_graceful_shutdown=math.ceil(drain_s) + 3,
    )
    server = _SignalFreeServer(config, on_ready)
    stopping = asyncio.ensure_future(drain_when_stopped())
    try:
        await server.serve(sockets=[listener])
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


async def serve_gateway(
    listener: socket.socket,
    host: str,
    client_options: dict[str, Any],
    options: GatewayOptions,
    emit: Emit,
    stop: asyncio.Event,
) -> None:
    """Join the network with one client for all requests, and serve until `stop`.

    Without a named target, wait until the network serves one. Raises as `AsyncClient` does if it cannot join.
    """
    shutting_down = asyncio.Event()
    with closing(listener):
        async with AsyncExitStack() as stack:
            evidence = EvidenceFile()

            async def joined() -> AsyncClient:
                said = ""
                while True:
                    try:
                        return await stack.enter_async_context(
                            AsyncClient(evidence_file=evidence, **client_options)
                        )
                    except GenerationFailed as error:
                        # No target is named, and the network serves none yet.
                        if said != (said := str(error)):
                            emit("waiting", {"said": said})
                        await asyncio.sleep(LOOK_AGAIN_S)

            client = await unless_stopped(joined(), stop)
            if client is not None:
                options = replace(options, model_name=options.model_name or client.target)
                ready: dict[str, object] = {"url": url_of(listener, host), "model": options.model_name}
                app = make_app(client, options, emit=emit, closing=shutting_down)
                await serve_app(
                    app, listener, stop=stop, closing=shutting_down, on_ready=lambda: emit("ready", ready)
                )
    emit("stopped", {})


class _SignalFreeServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the command and reports when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
