"""The names under which a gateway is asked, and the pages that ask: against pages that reach it in a browser.

A page may have its own name point to the gateway's address (DNS rebinding), but a browser then sends that name as
`Host`; and a page may send simple requests anywhere, but with its own `Origin`.
"""

from collections.abc import Collection, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cosine_node.gateway.api_errors import ApiError


class HostCheck:
    """Raises `ApiError` for a `Host` that is neither `localhost`, an IP address, nor one of `names`.

    And for an `Origin` that is neither the gateway itself nor one of `origins`.
    """

    def __init__(self, app: ASGIApp, *, names: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset(map(str.lower, names))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not is_own_name(name_of(host), self._names):
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "The gateway is not asked under this name; its operator allows one with --host-name.",
                code="unknown_host",
            )
        origin = headers.get("origin")
        if origin is not None and not (self._origins & {origin, "*"} or _is_at(origin, host)):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "Pages of this origin may not ask; the gateway's operator allows one with --cors-origin.",
                code="unknown_origin",
            )
        await self._app(scope, receive, send)


def name_of(host: str) -> str:
    """The name or address in a `Host` header, without port and brackets, in lower case; "" if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_own_name(name: str, names: Collection[str]) -> bool:
    """True for `localhost`, any IP address, and those of `names`."""
    if name in names or name == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_at(origin: str, host: str) -> bool:
    """True if a page of this origin came from the host it asks."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
