"""Fields of messages: their kinds, the bounds that many share, and bodies as msgpack arrays of fields.

A kind checks and converts a value in both directions, and raises `MalformedMessage`. It is in the `Annotated` type
of a dataclass field, except for `bool` and dataclasses.

A bound limits the memory and computation that a stranger can cause. The comment next to it states what honest peers
need, usually less than half. Messages at their bounds fit into a frame. Raising a bound changes the wire.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

import msgpack

from cosine_protocol.errors import LocalProtocolError, MalformedMessage

_T = TypeVar("_T")

MAX_FRAME_BYTES: Final = 1 << 20  # Bounds memory, a frame a stream; an `Open` of the longest prompt fits.
MAX_CHUNK_BYTES: Final = MAX_FRAME_BYTES // 4  # Lets other messages pass between two pieces.
MAX_FILE_BYTES: Final = 64 << 20  # Bounds a download; a tokenizer.json has at most tens of MB.
MAX_PROMPT_TOKENS: Final = 131_072  # The longest context of common open models, 128 Ki tokens.
MAX_NEW_TOKENS: Final = MAX_PROMPT_TOKENS  # The same as for a prompt.
MAX_TOKEN_ID: Final = (1 << 31) - 1  # Fits a signed 32-bit integer.
MAX_REQUEST_NUMBER: Final = (1 << 53) - 1  # Integers up to this are exact as doubles.
MAX_TEXT_BYTES: Final = 1024  # Bounds an error's sentence.
MAX_NAME_BYTES: Final = 256  # Names of models, networks and cells; a Hugging Face id has up to 96 characters.
MAX_PEER_ID_BYTES: Final = 64  # An Ed25519 peer id has 52 characters.
MAX_ADDRESSES: Final = 16  # Enough for a host with several interfaces and a relay.
MAX_RECORD_SKEW_S: Final = 60.0  # Clocks set by NTP differ by less than a second; others may differ more.
DIGEST_BYTES: Final = 16  # BLAKE2b-128: a collision would take 2^64 hashes during one request.
CONTENT_DIGEST_BYTES: Final = 32  # SHA-256.
SIGNATURE_BYTES: Final = 64  # Ed25519 (RFC 8032).


class Kind:
    """Checks and converts one value; `pack` is the inverse of `unpack`."""

    __slots__ = ()

    def unpack(self, value: object) -> Any:
        raise NotImplementedError

    def pack(self, value: Any) -> object:
        return self.unpack(value)


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number between two bounds, both included."""

    high: int
    low: int = 0

    def unpack(self, value: object) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise MalformedMessage(f"expected a whole number from {self.low} to {self.high}")
        return value

    def pack(self, value: int) -> object:
        return self.unpack(int(value) if isinstance(value, IntEnum) else value)


@dataclass(frozen=True, slots=True)
class Real(Kind):
    """A finite float between two bounds, both included."""

    high: float
    low: float = 0.0

    def unpack(self, value: object) -> float:
        if type(value) is not float or not math.isfinite(value) or not self.low <= value <= self.high:
            raise MalformedMessage(f"expected a number from {self.low} to {self.high}")
        return value

    def pack(self, value: float) -> object:
        return self.unpack(float(value))


@dataclass(frozen=True, slots=True)
class Bytes(Kind):
    """Between `low` and `high` bytes."""

    high: int
    low: int = 0

    def unpack(self, value: object) -> bytes:
        if type(value) is not bytes or not self.low <= len(value) <= self.high:
            raise MalformedMessage(f"expected {self.low} to {self.high} bytes")
        return value


def exactly(size: int) -> Bytes:
    return Bytes(size, size)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """UTF-8 text of at most `high` bytes."""

    high: int

    def unpack(self, value: object) -> str:
        try:
            if type(value) is not str or len(value) > self.high or len(value.encode()) > self.high:
                raise MalformedMessage(f"expected text of at most {self.high} bytes")
        except UnicodeEncodeError:
            raise MalformedMessage("text holds lone surrogates") from None
        return value

    def pack(self, value: str) -> object:
        return self.unpack(str(value) if isinstance(value, StrEnum) else value)


@dataclass(frozen=True, slots=True)
class Items(Kind):
    """A tuple of at most `high` values of one kind."""

    kind: Kind
    high: int

    def unpack(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > self.high:
            raise MalformedMessage(f"expected a list of at most {self.high}")
        return tuple(map(self.kind.unpack, value))

    def pack(self, value: tuple[Any, ...]) -> object:
        if len(value) > self.high:
            raise MalformedMessage(f"{len(value)} items are over the limit of {self.high}")
        return [self.kind.pack(item) for item in value]


@dataclass(frozen=True, slots=True)
class AtMost:
    """In a field's type, the bound of a tuple: `Items` of the kind of its elements."""

    high: int


@dataclass(frozen=True, slots=True)
class Maybe(Kind):
    """A value of one kind, or nothing."""

    kind: Kind

    def unpack(self, value: object) -> Any:
        return None if value is None else self.kind.unpack(value)

    def pack(self, value: Any) -> object:
        return None if value is None else self.kind.pack(value)


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    def unpack(self, value: object) -> bool:
        if type(value) is not bool:
            raise MalformedMessage("expected true or false")
        return value


@dataclass(frozen=True, slots=True)
class Added(Maybe):
    """A trailing field that older senders lack. Trailing None values are omitted."""


@dataclass(frozen=True, slots=True)
class Struct(Kind):
    """A nested dataclass, encoded as an array of its fields. Unknown trailing fields are ignored."""

    cls: type

    def unpack(self, value: object) -> Any:
        return unpack_fields(self.cls, value)

    def pack(self, value: Any) -> object:
        return pack_fields(value)


@dataclass(frozen=True, slots=True)
class Inline(Struct):
    """A nested dataclass whose fields are part of the outer one, `Added` ones at the end."""


Number = Annotated[int, Whole(MAX_REQUEST_NUMBER)]
Token = Annotated[int, Whole(MAX_TOKEN_ID)]
Position = Annotated[int, Whole(MAX_NEW_TOKENS)]
Digest = Annotated[bytes, exactly(DIGEST_BYTES)]
ContentDigest = Annotated[bytes, exactly(CONTENT_DIGEST_BYTES)]
Signature = Annotated[bytes, exactly(SIGNATURE_BYTES)]
Microseconds = Annotated[int, Whole(3_600_000_000)]
Seconds = Annotated[float, Real(1e11)]
Sentence = Annotated[str, Text(MAX_TEXT_BYTES)]
Label = Annotated[str, Text(64)]
Name = Annotated[str, Text(MAX_NAME_BYTES)]
PeerId = Annotated[str, Text(MAX_PEER_ID_BYTES)]
Addresses = Annotated[tuple[Name, ...], AtMost(MAX_ADDRESSES)]


TAG_OF: Final[dict[type, int]] = {}
"""The tags of all messages. A tag never changes its meaning."""


@dataclass_transform(frozen_default=True)
def message(tag: int, *, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Declare a message: a frozen dataclass with a tag on the wire."""

    def declare(cls: type[_T]) -> type[_T]:
        declared = dataclass(frozen=True, slots=True, kw_only=kw_only)(cls)
        TAG_OF[declared] = tag
        return declared

    return declare


@cache
def fields_of(cls: type) -> tuple[tuple[str, Kind], ...]:
    """The (name, kind) of every field of a message class, in wire order.

    A field that may be None is an `Added` one if that is its default, else a `Maybe`. A generic class has its kind
    from its own `kind_of`.
    """
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        (field.name, _kind_of(hints[field.name], is_added=field.default is None))
        for field in dataclasses.fields(cls)
    )


def _kind_of(hint: Any, *, is_added: bool = False) -> Kind:
    if NoneType in get_args(hint):
        (of,) = (each for each in get_args(hint) if each is not NoneType)
        return Added(_kind_of(of)) if is_added else Maybe(_kind_of(of))
    if hint is bool:
        return Flag()
    if kind_of := getattr(get_origin(hint), "kind_of", None):
        return cast(Kind, kind_of(*get_args(hint)))
    if isinstance(hint, type):
        return Struct(hint)
    kind: Kind | AtMost = hint.__metadata__[0]
    if isinstance(kind, AtMost):
        return Items(_kind_of(get_args(hint.__origin__)[0]), kind.high)
    return kind


@cache
def wire_fields_of(cls: type) -> tuple[tuple[str, Kind], ...]:
    """Like `fields_of`, but with the fields of `Inline` ones: one per value of the array."""
    inner = [
        field
        for name, kind in fields_of(cls)
        for field in (wire_fields_of(kind.cls) if isinstance(kind, Inline) else ((name, kind),))
    ]
    return tuple(sorted(inner, key=lambda field: isinstance(field[1], Added)))


def unpack_fields(cls: type, values: object) -> Any:
    """Build `cls` from an array of wire values; further values are ignored. Raises `MalformedMessage`."""
    size = sum(not isinstance(kind, Added) for _, kind in wire_fields_of(cls))
    if not isinstance(values, list | tuple) or len(values) < size:
        raise MalformedMessage(f"{cls.__name__} needs {size} fields")
    return _build(cls, iter(values[:size]), iter(values[size:]))


def _build(cls: type, values: Iterator[object], added: Iterator[object]) -> Any:
    converted = {}
    for name, kind in fields_of(cls):
        if isinstance(kind, Inline):
            converted[name] = _build(kind.cls, values, added)
            continue
        try:
            converted[name] = kind.unpack(next(added, None) if isinstance(kind, Added) else next(values))
        except MalformedMessage as error:
            raise MalformedMessage(f"{cls.__name__}.{name}: {error}") from None
    return cls(**converted)


def pack_fields(message: Any) -> list[object]:
    """The wire values of a message's fields. Raises `MalformedMessage`."""
    values, added = _wire_values(message)
    while added and added[-1] is None:
        added.pop()
    return values + added


def _wire_values(message: Any) -> tuple[list[object], list[object]]:
    values: list[object] = []
    added: list[object] = []
    cls: type = type(message)
    for name, kind in fields_of(cls):
        value = getattr(message, name)
        if isinstance(kind, Inline):
            inner_values, inner_added = _wire_values(value)
            values += inner_values
            added += inner_added
        else:
            (added if isinstance(kind, Added) else values).append(kind.pack(value))
    return values, added


def encode_body(body: Any, *tag: int) -> bytes:
    """The array of a tag, if given, and a dataclass's fields. Raises `LocalProtocolError` for one out of bounds."""
    name = type(body).__name__
    try:
        values = [*tag, *pack_fields(body)]
    except MalformedMessage as error:
        raise LocalProtocolError(f"{name}: {error}") from None
    try:
        return cast(bytes, msgpack.packb(values, use_bin_type=True))
    except (OverflowError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{name} cannot be encoded: {error}") from None


def decode_body(cls: type[_T], data: bytes) -> _T:
    """The inverse of `encode_body`; trailing fields are ignored. Raises `MalformedMessage`."""
    return cast(_T, unpack_fields(cls, unpack_array(data)))


def unpack_array(data: bytes) -> object:
    """Decode msgpack without extension types, maps and arrays over the bounds. Raises `MalformedMessage`."""
    try:
        # Arrays are allocated before their values are read, up to a thousand levels deep: check first that the
        # values exist.
        whole = msgpack.Unpacker(max_buffer_size=len(data))
        whole.feed(data)
        whole.skip()
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_bin_len=MAX_FRAME_BYTES,
            max_str_len=MAX_FRAME_BYTES,
            max_array_len=MAX_PROMPT_TOKENS,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"not msgpack: {error or type(error).__name__}") from None
