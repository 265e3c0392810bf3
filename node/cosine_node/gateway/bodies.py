"""Request bodies: bounded, strict JSON objects."""

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final, NoReturn

from starlette.requests import Request

from cosine_node.gateway.api_errors import ApiError

MAX_BODY_BYTES: Final = 4 << 20
BODY_TIMEOUT_S: Final = 30.0


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object a request carries. Raises `ApiError`, after `BODY_TIMEOUT_S` at the latest."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return parse_object(await _read(request))
    except TimeoutError:
        message = f"The body was not there within {BODY_TIMEOUT_S:g} s."
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, message, code="body_too_slow") from None


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            message = f"The body has more than {MAX_BODY_BYTES} bytes."
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, code="body_too_large")
    return bytes(data)


def parse_object(data: bytes) -> dict[str, Any]:
    """Bytes as a JSON object. Raises `ApiError`."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.", code="invalid_json")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
