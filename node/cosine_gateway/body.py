"""Request bodies: bounded strict JSON, and checks of fields, which raise an `ApiError` that names the field."""

import asyncio
import json
import math
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request

from cosine_gateway.api_errors import ApiError, bad_value, unsupported
from cosine_protocol.fields import MAX_TOKEN_ID

MAX_BODY_BYTES: Final = 4 << 20
"""Bounds memory: several times the text of the longest contexts, in UTF-8 and escaped."""
BODY_TIMEOUT_S: Final = 30.0
"""Enough for the largest body over 1 Mbit/s; stops clients that send very slowly."""

NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?")
"""A decimal number in JSON syntax, without an exponent."""

Body = Mapping[str, Any]
Json = dict[str, Any]
"""A JSON object that is written."""


async def read_body(request: Request) -> bytes:
    """Read a body of at most `MAX_BODY_BYTES` within `BODY_TIMEOUT_S`. Raises `ApiError`."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_BODY_BYTES:
                    message = f"The body has more than {MAX_BODY_BYTES} bytes."
                    raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, code="body_too_large")
    except TimeoutError:
        message = f"The body did not arrive within {BODY_TIMEOUT_S:g} s."
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, message, code="body_too_slow") from None
    return bytes(data)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object, and reject NaN and infinity, which Python's parser accepts. Raises `ApiError`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.", code="invalid_json")
    for name, inner in value.items():
        if not is_finite_throughout(inner):
            raise bad_value(ascii_name(name), f"{ascii_name(name)} contains NaN or an infinite number.")
    return value


def is_finite_throughout(value: Any) -> bool:
    """Return False if a JSON value contains NaN or infinity."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float(number) if not math.isfinite(number):
                return False
            case list(items):
                waiting += items
            case dict(fields):
                waiting += fields.values()
    return True


def ascii_name(name: str) -> str:
    """A field name from a client, escaped and truncated for an error message."""
    return name.encode("ascii", "backslashreplace").decode()[:64]


def required(body: Body, name: str, *, path: str = "") -> Any:
    """Return a required field; errors call it `path`, by default `name`."""
    value = body.get(name)
    if value is None:
        raise bad_value(path or name, f"{path or name} is required.")
    return value


def whole_field(body: Body, name: str, default: int, *, low: int, high: int) -> int:
    """Return an integer field from `low` to `high`."""
    value = body.get(name)
    return default if value is None else whole(value, name, low=low, high=high)


def whole(value: Any, name: str, *, low: int, high: int) -> int:
    """Check an integer from `low` to `high`; 8.0 counts as 8, as JSON has one kind of number."""
    value = number_in(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_value(name, f"{name} must be a whole number from {low} to {high}.")
    return value


def number_in(value: Any) -> Any:
    """Convert a string that contains a number, as some clients send it; return other values unchanged."""
    return json.loads(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def token_ids(value: Any, name: str, *, high: int) -> tuple[int, ...]:
    """Check a list of at most `high` token ids."""
    if not isinstance(value, list) or len(value) > high:
        raise bad_value(name, f"{name} must be a list of at most {high} token ids.")
    return tuple(whole(each, name, low=0, high=MAX_TOKEN_ID) for each in value)


def real(value: Any, name: str) -> float:
    """Check a number of any size."""
    value = number_in(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_value(name, f"{name} must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise bad_value(name, f"{name} is too large.") from None


def flag(body: Body, name: str) -> bool | None:
    """Return a boolean field, or None if it is absent."""
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise bad_value(name, f"{name} must be true or false.")
    return value


def text(value: Any, name: str) -> str:
    """Check a string that can be encoded as UTF-8: it has no lone surrogates."""
    if not isinstance(value, str):
        raise bad_value(name, f"{name} must be a string.")
    if not is_unicode(value):
        raise bad_value(name, f"{name} contains a lone surrogate.")
    return value


def text_field(body: Body, name: str, path: str = "") -> str:
    """Return a required string field of the object at `path`."""
    place = _place(path, name)
    return text(required(body, name, path=place), place)


def stated_text(body: Body, name: str, path: str = "") -> str | None:
    """Return a string field of the object at `path`, or None if it is absent."""
    return None if body.get(name) is None else text(body[name], _place(path, name))


def _place(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nested(body: Body, name: str, *, known: Collection[str], neutral: Collection[Any] = (None,)) -> dict[str, Any]:
    """Return an object field. Default: empty. Fields that are not `known` must have a neutral value."""
    value = body.get(name)
    if not isinstance(value, dict | None):
        raise bad_value(name, f"{name} must be an object.")
    for field, inner in (value or {}).items():
        if field not in known and inner not in neutral:
            raise unsupported(f"{name}.{ascii_name(field)}")
    return value or {}


def objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Check a list of JSON objects."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise bad_value(name, f"{name} must be a list of objects.")
    return value


def conversation(value: Any, name: str) -> list[dict[str, Any]]:
    """Check a list of at least one JSON object; errors name the first other element."""
    if not isinstance(value, list) or not value:
        raise bad_value(name, f"{name} must be a list of at least one object.")
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise bad_value(f"{name}[{index}]", f"{name}[{index}] must be an object.")
    return value


def wrong_type(value: Any, path: str, reason: str) -> ApiError:
    """The error for an object at `path` whose type is not supported, with the reason."""
    kind = value.get("type")
    shown = ascii_name(kind) if isinstance(kind, str) else "that"
    return unsupported(f"{path}.type", f"{path} is of type {shown}: {reason}.")


def schema_object(value: Any, name: str) -> dict[str, Any]:
    """Check a JSON schema."""
    if not isinstance(value, dict):
        raise bad_value(name, f"{name} must be a JSON schema: an object.")
    checked: dict[str, Any] = unicode_throughout(value, name)
    return checked


def unicode_throughout(value: Any, name: str) -> Any:
    """Check a JSON value whose strings have no lone surrogates."""
    try:
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise bad_value(name, f"{name} is nested too deeply.") from None
    if not is_unicode(written):
        raise bad_value(name, f"{name} contains a lone surrogate.")
    return value


def is_unicode(value: str) -> bool:
    """Return True if a string can be encoded as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
