"""The files of the page, as `web/` is built into them, with headers that let a browser ask nobody else."""

import gzip
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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
"""Only these files are loaded, only this gateway is asked, and no text can become markup or a script."""
HEADERS: Final = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # Always asked for again, which costs an answer without a body: an older page may not fit a newer gateway.
        "cache-control": "no-cache",
        "vary": "accept-encoding",
    }
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, whole and compressed; `tag` changes with its bytes."""

    media_type: str
    body: bytes
    compressed: bytes
    tag: str


def read_assets(folder: Path = FOLDER) -> Mapping[str, Asset]:
    """All files of the page by name."""
    assets = {}
    for file in sorted(folder.iterdir()):
        body = file.read_bytes()
        compressed = gzip.compress(body, mtime=0)
        assets[file.name] = Asset(TYPES[file.suffix], body, compressed, f'"{sha256(body).hexdigest()[:24]}"')
    return assets


def asset_routes(folder: Path = FOLDER) -> list[Route]:
    """The page at `/`, its files below `/page/`; everybody may read them."""
    files = read_assets(folder)

    def answer(request: Request) -> Response:
        asset = files[request.path_params.get("name", INDEX)]
        headers = {**HEADERS, "content-type": asset.media_type, "etag": asset.tag}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"})
        return Response(asset.body, headers=headers)

    def serving(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            request.path_params["name"] = name
            return answer(request)

        return serve

    own = [Route(f"/page/{name}", serving(name)) for name in files if name != INDEX]
    return [Route("/", serving(INDEX)), *own]
