"""The static files of the page, built from `web/`, with headers that forbid requests to other servers."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).with_name("assets")
INDEX: Final = "index.html"
TYPES: Final = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Allows only these files and requests to this gateway; text cannot become markup or a script."""
HEADERS: Final = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # Browsers revalidate each file, as an older page may not fit a newer gateway.
        "cache-control": "no-cache",
        "vary": "accept-encoding",
    }
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed; `tag` is its ETag."""

    media_type: str
    body: bytes
    compressed: bytes
    tag: str


def read_assets() -> Mapping[str, Asset]:
    """Read all files of the page, by name."""
    assets = {}
    for file in sorted(FOLDER.iterdir()):
        body = file.read_bytes()
        compressed = gzip.compress(body, mtime=0)
        assets[file.name] = Asset(TYPES[file.suffix], body, compressed, f'"{sha256(body).hexdigest()[:24]}"')
    return assets


def asset_routes() -> list[Route]:
    """The public routes of the page at `/` and of its files below `/page/`."""
    return [
        Route("/" if name == INDEX else f"/page/{name}", partial(_answer, asset))
        for name, asset in read_assets().items()
    ]


async def _answer(asset: Asset, request: Request) -> Response:
    headers = {**HEADERS, "content-type": asset.media_type, "etag": asset.tag}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"})
    return Response(asset.body, headers=headers)
