"""Arguments of programs: converted to plain values, or refused with the allowed values in a sentence. Pure."""

import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_TOKEN_ID
from cosine_protocol.request import MAX_EOS_TOKENS

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ArgumentKind(Generic[_T]):
    """The valid values of an argument, and their conversion.

    `meaning` completes "... must be"; `read` returns the plain value, or raises `ValueError` or `TypeError`. `low`
    and `high` are bounds of numbers; `choices` are all values of an enumeration.
    """

    meaning: str
    read: Callable[[Any], _T]
    type: type = str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


def read_argument(name: str, value: object, kind: ArgumentKind[_T]) -> _T:
    """Return the plain value of an argument. Raises `UsageError` with its name and the allowed values."""
    try:
        return kind.read(value)
    except (TypeError, ValueError, OverflowError) as error:
        # Only for frequent mistakes.
        advice = f"; {error}" if isinstance(error, _Advice) else ""
        raise UsageError(f"{name} must be {kind.meaning}, not {reprlib.repr(value)}{advice}.") from None


def refuse_unknown(name: str, known: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown name, with similar or all known ones."""
    names = list(known)
    if name not in names:
        nearest = get_close_matches(name, names, n=1) or names
        raise UsageError(f"There is no option {name!r}; there is {', '.join(nearest)}.")


def plain_number(value: object) -> int | float:
    """Return a Python number for any real one, also numpy's. Raises `TypeError`, also for a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return int(value) if isinstance(value, Integral) else float(value)


def whole(low: int, high: int | None = None) -> ArgumentKind[int]:
    """Whole numbers between two inclusive bounds; floats are refused."""

    def read(value: object) -> int:
        number = plain_number(value)
        if not isinstance(number, int) or number < low or (high is not None and number > high):
            raise ValueError
        return number

    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return ArgumentKind(f"a whole number {bounds}", read, int, low, high)


def one_of(*choices: str) -> ArgumentKind[str]:
    """An enumeration of words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return str(value)

    *others, last = map(repr, choices)
    return ArgumentKind(f"{', '.join(others)} or {last}", read, choices=choices)


def text(noun: str) -> ArgumentKind[str]:
    """Non-empty text."""

    def read(value: object) -> str:
        if isinstance(value, bytes | bytearray):
            raise _Advice("decode bytes to text first")
        if isinstance(value, Collection) and not isinstance(value, str):
            raise _Advice("give one, not several")
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return ArgumentKind(noun, read)


def texts(noun: str) -> ArgumentKind[tuple[str, ...]]:
    """Texts in a list, tuple or set; a single text is refused."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            raise _Advice(f"write [{reprlib.repr(value)}]")
        return tuple(text(noun).read(each) for each in _items(value))

    return ArgumentKind(f"a list of {noun}", read, tuple)


def _real(meaning: str, is_valid: Callable[[float], bool], **bounds: float) -> ArgumentKind[float]:
    def read(value: object) -> float:
        number = float(plain_number(value))
        if not is_valid(number):
            raise ValueError
        return number

    return ArgumentKind(meaning, read, float, bounds.get("low"), bounds.get("high"))


def with_methods(*names: str) -> ArgumentKind[Any]:
    """Objects with these methods."""

    def read(value: object) -> object:
        if not all(callable(getattr(value, name, None)) for name in names):
            raise TypeError
        return value

    return ArgumentKind(f"an object with {' and '.join(f'`{name}`' for name in names)}", read, object)


def _read_stop(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(_items(value))
    if not all(isinstance(stop, str) for stop in stops):
        raise TypeError
    return stops


def _read_token_ids(value: object) -> tuple[int, ...]:
    ids = tuple(TOKEN_ID.read(token) for token in _items(value))
    if len(ids) > MAX_EOS_TOKENS:
        raise ValueError
    return ids


def _read_flag(value: object) -> bool:
    if value not in (True, False):
        raise ValueError
    return bool(value)


def _items(value: object) -> Collection[Any]:
    """Raises `TypeError` for text, bytes, mappings and single values."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Collection):
        raise TypeError
    return items


class _Advice(ValueError):
    """Advice about a frequent mistake."""


FLAG = ArgumentKind("True or False", _read_flag, bool)
SECONDS = _real("a number of seconds above 0", lambda seconds: seconds > 0)
SHARE = _real("a number from 0 to 1", lambda share: 0 <= share <= 1, low=0, high=1)
STOP = ArgumentKind("a text or a list of texts", _read_stop, tuple)
TOKEN_ID = whole(0, MAX_TOKEN_ID)
TOKEN_IDS = ArgumentKind(
    f"a list of at most {MAX_EOS_TOKENS} token ids from 0 to {MAX_TOKEN_ID}", _read_token_ids, tuple
)
