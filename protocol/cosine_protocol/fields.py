"""Field kinds, which check the values of messages on encoding and decoding.

A kind is in the `Annotated` type of a dataclass field, except for `bool` and dataclasses. Both directions raise
`MalformedMessage`; the codec turns that of encoding into `LocalProtocolError`.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

from cosine_protocol import limits
from cosine_protocol.errors import MalformedMessage


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


Number = Annotated[int, Whole(limits.MAX_REQUEST_NUMBER)]
Position = Annotated[int, Whole(limits.MAX_NEW_TOKENS)]
Digest = Annotated[bytes, exactly(limits.DIGEST_BYTES)]
ContentDigest = Annotated[bytes, exactly(limits.CONTENT_DIGEST_BYTES)]
Signature = Annotated[bytes, exactly(limits.SIGNATURE_BYTES)]
Microseconds = Annotated[int, Whole(3_600_000_000)]
Name = Annotated[str, Text(limits.MAX_NAME_BYTES)]
PeerId = Annotated[str, Text(limits.MAX_PEER_ID_BYTES)]


class SignedBody(Protocol):
    """A signed dataclass: the kind of its signature, and the maximum size of its encoding."""

    KIND: ClassVar[str]
    MAX_BYTES: ClassVar[int]


BodyT = TypeVar("BodyT", bound=SignedBody)


@dataclass(frozen=True, slots=True)
class Signed(Generic[BodyT]):
    """An encoded body with the signature of its author (`cosine_protocol.statements`)."""

    body: Annotated[bytes, Bytes(limits.MAX_REVOCATIONS_BYTES)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedField(Struct):
    """A `Signed` whose body decodes to `of`, within its maximum size."""

    cls: type = dataclasses.field(default=Signed, init=False)
    of: type[SignedBody]

    def unpack(self, value: object) -> Any:
        return self._bounded(Struct.unpack(self, value))

    def pack(self, value: Any) -> object:
        return Struct.pack(self, self._bounded(value))

    def _bounded(self, signed: Signed[Any]) -> Signed[Any]:
        Bytes(self.of.MAX_BYTES).unpack(signed.body)
        return signed


@cache
def fields_of(cls: type) -> tuple[tuple[str, Kind], ...]:
    """The (name, kind) of every field of a message class, in wire order."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field.name, _kind_of(hints[field.name])) for field in dataclasses.fields(cls))


def _kind_of(hint: Any) -> Kind:
    if hint is bool:
        return Flag()
    if get_origin(hint) is Signed:
        return SignedField(get_args(hint)[0])
    if isinstance(hint, type):
        return Struct(hint)
    kind: Kind = hint.__metadata__[0]
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
    values, added = _packed(message)
    while added and added[-1] is None:
        added.pop()
    return values + added


def _packed(message: Any) -> tuple[list[object], list[object]]:
    values: list[object] = []
    added: list[object] = []
    cls: type = type(message)
    for name, kind in fields_of(cls):
        value = getattr(message, name)
        if isinstance(kind, Inline):
            inner_values, inner_added = _packed(value)
            values += inner_values
            added += inner_added
        else:
            (added if isinstance(kind, Added) else values).append(kind.pack(value))
    return values, added
