"""What surrounds every request: its id, its line in the log, and an answer even where the gateway has a fault."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosine_node.gateway.api_errors import internal

LOG = logging.getLogger(__name__)
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ID_BYTES: Final = 12
NO_RESPONSE: Final = 499
"""What the log says of a request whose client did not wait, as nginx does."""

Emit = Callable[[str, dict[str, object]], None]


def request_id(given: str) -> str:
    """The caller's own id if it is short and plain, else a new one."""
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(ID_BYTES)


class Envelope:
    """ASGI middleware. Sets `request.state.request_id`, and `request.state.facts` for what the log shall say.

    Each request is told to `emit` as a `request` event and its status to `count_response`.
    """

    def __init__(self, app: ASGIApp, *, emit: Emit, count_response: Callable[[int], None]) -> None:
        self._app = app
        self._emit = emit
        self._count_response = count_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), NO_RESPONSE
        identifier = request_id(Headers(scope=scope).get("x-request-id", ""))
        facts: dict[str, object] = {}
        scope["state"] = {"request_id": identifier, "facts": facts}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identifier
            await send(message)

        try:
            await self._guarded(scope, receive, send_with_id, lambda: status == NO_RESPONSE)
        finally:
            self._count_response(status)
            # Quoted, so that no path can break a line.
            named = {"id": identifier, "method": scope["method"], "path": quote(scope["path"])}
            self._emit("request", {**named, "status": status, "seconds": round(loop.time() - began_s, 4), **facts})

    async def _guarded(self, scope: Scope, receive: Receive, send: Send, is_unanswered: Callable[[], bool]) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            LOG.exception("request %s failed", scope["state"]["request_id"])
            if is_unanswered():
                problem = internal()
                await JSONResponse(problem.body, problem.status)(scope, receive, send)
