"""ASGI middleware: an id, a line in the log and an answer for every request; a key for those that need one."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.http.refusals import refusal
from cosine_node.terminal.events import Emit

LOG = logging.getLogger(__name__)

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Ids that fit into a header and a line of the log as they are: UUIDs and what tracing tools write."""

NO_RESPONSE: Final = 499
"""The status in the log of a request whose client did not wait, as nginx has it."""


def request_id(given: str) -> str:
    """The caller's own id if it is short and plain, else a new one.

    It has 96 random bits: among a billion requests two are unlikely to get the same.
    """
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


class RequestLog:
    """Sets `request.state.request_id`, and `request.state.log_fields` for what the log shall say besides.

    Each request is told to `emit` as a `request` event and its status to `count_response`. A fault of the gateway
    is answered too.
    """

    def __init__(self, app: ASGIApp, *, emit: Emit, count_response: Callable[[int], None]) -> None:
        self._app = app
        self._emit = emit
        self._count_response = count_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), NO_RESPONSE
        identifier = request_id(Headers(scope=scope).get("x-request-id", ""))
        log_fields: dict[str, object] = {}
        scope["state"] = {"request_id": identifier, "log_fields": log_fields}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                # The second is Anthropic's name for it.
                headers["x-request-id"] = headers["request-id"] = identifier
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            LOG.exception("request %s failed", identifier)
            if status == NO_RESPONSE:
                answer = refusal(internal(), path=scope["path"], request_id=identifier)
                await answer(scope, receive, send_with_id)
        finally:
            self._count_response(status)
            fields = {
                "id": identifier,
                "method": scope["method"],
                # Quoted, so that no path can break a line.
                "path": quote(scope["path"]),
                "status": status,
                "seconds": round(loop.time() - began_s, 4),
            }
            self._emit("request", fields | log_fields)


class LengthCheck:
    """Raises `ApiError` for a body with two lengths (RFC 9112, 6.3): a proxy may go by the other one than this
    server does, and take the rest of the body for somebody's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name.lower() for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "A body has one length: send Content-Length or Transfer-Encoding, not both.",
                code="two_lengths",
                headers={"Connection": "close"},
            )
        await self._app(scope, receive, send)


def key_digest(key: str) -> bytes:
    """An API key as it is kept and compared."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def matched_key(known: Sequence[bytes], authorization: str, api_key: str = "") -> bytes | None:
    """The digest of the key in an `Authorization` header, or else in an `x-api-key` one, as Anthropic has it.

    None if it is none of those known; `b""` without any. Keys are compared in constant time whatever their number
    and length.
    """
    scheme, _, token = authorization.partition(" ")
    given = [token.strip() if scheme.lower() == "bearer" else "", api_key.strip()]
    digests = [key_digest(each) for each in given]
    matches = [[compare_digest(digest, each) for each in known] for digest in digests]
    if not known:
        return b""
    return next((digest for digest, found in zip(digests, matches, strict=True) if any(found)), None)


class KeyCheck:
    """Raises `ApiError` for a request without one of the keys; `request.state.key` is the digest of the others'."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._known = [key_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        key = matched_key(self._known, headers.get("authorization", ""), headers.get("x-api-key", ""))
        if key is None:
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "The API key is missing or wrong; send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope["state"]["key"] = key
        await self._app(scope, receive, send)


# A page can be asked for under any name that its owner may point to the gateway's address (DNS rebinding). Nobody
# on the internet owns these: `localhost` is the loopback (RFC 6761), `local` is asked of the link alone (RFC 6762),
# `home.arpa` and `internal` are never delegated (RFC 8375, ICANN 2024), a public name has a dot in it (RFC 7085).
# Containers have names of the last kinds: those of services, and `host.docker.internal` for their machine.
PRIVATE_NAME: Final = re.compile(r"(?:[a-z0-9_-]+\.)+(?:localhost|local|home\.arpa|internal)|[a-z0-9_-]+")

LOCAL_ORIGIN: Final = (
    r"https?://(?:(?:[a-z0-9_-]+\.)*localhost|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|\[::1\])(?::[0-9]{1,5})?"
    r"|(?:app|tauri|vscode-file|vscode-webview)://[^/]*"
)
"""Origins of pages that programs of this machine serve, and of applications on it; Ollama lets in the same.

No website can have one, and such a program could ask without a browser. `null` is none of them, which browsers
write for files: any website can show a page that has it.
"""


class HostCheck:
    """Raises `ApiError` for a `Host` that may be a stranger's: no IP address, no private name, none of `names`.

    And for an `Origin` that is neither local, the gateway itself, nor one of `origins`. A page in a browser may
    have its own name point to the gateway's address, but the browser then sends that name as `Host`; and a page may
    send simple requests anywhere, but with its own `Origin`.
    """

    def __init__(self, app: ASGIApp, *, names: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset(map(str.lower, names))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        # Without it, as in HTTP/1.0, no browser asks.
        host = headers.get("host")
        if host is not None and not is_own_name(host, self._names):
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "The gateway is not asked under this name; its operator allows one with --host-name.",
                code="unknown_host",
            )
        origin = headers.get("origin")
        if origin is not None and not (
            self._origins & {origin, "*"} or is_local(origin) or _is_at(origin, host or "")
        ):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "Pages of this origin may not ask; the gateway's operator allows one with --cors-origin.",
                code="unknown_origin",
            )
        await self._app(scope, receive, send)


def is_own_name(host: str, names: Collection[str]) -> bool:
    """True for a `Host` header with any IP address, a private name, or one of `names`, at whatever port."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower().removesuffix(".")
        return name in names or bool(PRIVATE_NAME.fullmatch(name)) or bool(ip_address(name))
    except ValueError:
        return False


def is_local(origin: str) -> bool:
    """True for the `Origin` of a page, or an application, of this machine."""
    return bool(re.fullmatch(LOCAL_ORIGIN, origin))


def _is_at(origin: str, host: str) -> bool:
    """True if a page of this origin came from the host it asks."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
