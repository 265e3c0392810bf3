"""ASGI middleware: request ids and logs, and checks of lengths, hosts, origins and API keys."""

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

from cosine_gateway.api_errors import ApiError, internal, refusal
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Ids that need no escaping in a header or a log line, such as UUIDs."""

NO_RESPONSE: Final = 499
"""The status in the log, as in nginx, of a request whose client hung up."""


def request_id(given: str) -> str:
    """Return the client's id if it matches `REQUEST_ID`, else a new one of 96 random bits."""
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


class RequestLog:
    """Sets `request.state.request_id`, and `request.state.log_fields` for further fields of the log.

    Emits each request as a `request` event, counts its status, and answers after an unexpected exception.
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
                # Quoted, so that a path cannot contain a line break.
                "path": quote(scope["path"]),
                "status": status,
                "seconds": round(loop.time() - began_s, 4),
            }
            self._emit("request", fields | log_fields)


class LengthCheck:
    """Raises `ApiError` for a body with two lengths, which enable request smuggling (RFC 9112, 6.3)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name.lower() for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "Send either Content-Length or Transfer-Encoding, not both.",
                code="two_lengths",
                headers={"Connection": "close"},
            )
        await self._app(scope, receive, send)


def key_digest(key: str) -> bytes:
    """The SHA-256 digest of an API key, by which keys are stored and compared."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def matched_key(known: Sequence[bytes], authorization: str, api_key: str = "") -> bytes | None:
    """Return the digest of the key in an `Authorization` header, or else in Anthropic's `x-api-key`.

    Return None if the key is unknown, `b""` if no keys are known. The comparison takes constant time.
    """
    scheme, _, token = authorization.partition(" ")
    given = [token.strip() if scheme.lower() == "bearer" else "", api_key.strip()]
    digests = [key_digest(each) for each in given]
    matches = [[compare_digest(digest, each) for each in known] for digest in digests]
    if not known:
        return b""
    return next((digest for digest, found in zip(digests, matches, strict=True) if any(found)), None)


class KeyCheck:
    """Raises `ApiError` for a request without one of the keys, and sets `request.state.key` to the key's digest."""

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


# An attacker can point a name that he owns to the gateway's address (DNS rebinding). Nobody on the internet owns
# these names: `localhost` is the loopback (RFC 6761), `local` is resolved on the link (RFC 6762), `home.arpa` and
# `internal` are never delegated (RFC 8375, ICANN 2024), and public names contain a dot (RFC 7085). Containers use
# names of the last two kinds: those of services, and `host.docker.internal`.
PRIVATE_NAME: Final = re.compile(r"(?:[a-z0-9_-]+\.)+(?:localhost|local|home\.arpa|internal)|[a-z0-9_-]+")

LOCAL_ORIGIN: Final = (
    r"https?://(?:(?:[a-z0-9_-]+\.)*localhost|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|\[::1\])(?::[0-9]{1,5})?"
    r"|(?:app|tauri|vscode-file|vscode-webview)://[^/]*"
)
"""Origins of local pages and applications, as in Ollama. No website can have one.

`null`, the origin of files, is not included: any website can show a page that has it.
"""


class HostCheck:
    """Raises `ApiError` for a foreign `Host` or `Origin`.

    An allowed `Host` is an IP address, a private name or one of `names`: after DNS rebinding a browser sends the
    attacker's name. An allowed `Origin` is local, the gateway itself or one of `origins`: pages can send simple
    requests anywhere, but with their own `Origin`.
    """

    def __init__(self, app: ASGIApp, *, names: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset(map(str.lower, names))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        # Browsers always send a host.
        host = headers.get("host")
        if host is not None and not is_own_name(host, self._names):
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "The gateway does not accept this host name; its operator can allow it with --host-name.",
                code="unknown_host",
            )
        origin = headers.get("origin")
        if origin is not None and not (
            self._origins & {origin, "*"} or is_local(origin) or _is_at(origin, host or "")
        ):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "The gateway does not accept this origin; its operator can allow it with --cors-origin.",
                code="unknown_origin",
            )
        await self._app(scope, receive, send)


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Return True for a `Host` with an IP address, a private name or one of `names`, and any port."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower().removesuffix(".")
        return name in names or bool(PRIVATE_NAME.fullmatch(name)) or bool(ip_address(name))
    except ValueError:
        return False


def is_local(origin: str) -> bool:
    """Return True for the `Origin` of a local page or application."""
    return bool(re.fullmatch(LOCAL_ORIGIN, origin))


def _is_at(origin: str, host: str) -> bool:
    """Return True if a page of this origin comes from this host."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
