"""Fields of a JSON object, read strictly; null and absent are the same. All raise `ApiError` naming the field."""

from collections.abc import Mapping
from typing import Any

from cosine_node.gateway.api_errors import ApiError, bad_value

Body = Mapping[str, Any]


def whole(body: Body, name: str, default: int, *, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_value(name, f"{name} must be a whole number from {low} to {high}.")
    return value


def real(body: Body, name: str, default: float) -> float:
    """A number; its range is checked by whoever knows it."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_value(name, f"{name} must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise bad_value(name, f"{name} is too large.") from None


def flag(body: Body, name: str) -> bool:
    """True or false, the default."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_value(name, f"{name} must be true or false.")
    return value


def text(value: Any, name: str) -> str:
    """A string that can be written as UTF-8, which half a surrogate pair cannot."""
    if not isinstance(value, str):
        raise bad_value(name, f"{name} must be a string.")
    if not is_unicode(value):
        raise bad_value(name, f"{name} holds half of a surrogate pair.")
    return value


def is_unicode(value: str) -> bool:
    """Whether a string can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def required(body: Body, name: str) -> Any:
    """A field that must be there."""
    value = body.get(name)
    if value is None:
        raise missing(name)
    return value


def missing(name: str) -> ApiError:
    """A field that must be there and is not."""
    return bad_value(name, f"{name} is required.")
