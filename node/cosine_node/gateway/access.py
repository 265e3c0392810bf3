"""Who may use the gateway."""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cosine_node.gateway.api_errors import ApiError

SCHEME: Final = "bearer"


class KeyRing:
    """Accepted API keys, compared in constant time whatever their number and length."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def accepts(self, authorization: str) -> bool:
        """Whether an `Authorization` header holds one of the keys; anything will do where there are none."""
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip())
        matches = [compare_digest(digest, known) for known in self._digests]
        return not self._digests or (scheme.lower() == SCHEME and any(matches))


class Guard:
    """ASGI middleware: raises `ApiError` for a request without one of the keys."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys.accepts(Headers(scope=scope).get("authorization", "")):
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
