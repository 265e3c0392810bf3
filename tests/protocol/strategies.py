"""Values to test with, made from the field kinds of each message class: a new message is covered at once."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.fields import (
    Bytes,
    Flag,
    Items,
    Kind,
    Maybe,
    Real,
    Signed,
    SignedField,
    Struct,
    Text,
    Whole,
    fields_of,
)
from cosine_protocol.limits import SIGNATURE_BYTES
from cosine_protocol.manifest import Manifest, ManifestPart, ManifestTensor
from cosine_protocol.nodes import MAX_BLOCK_NODES, NodeBlock
from cosine_protocol.protocols import TAGS
from cosine_protocol.records import NodeRecord, StageOffer
from cosine_protocol.request import Sampling

BODIES: Final = (
    *(m.Draft, m.Account, m.Mandate, m.Transcript),
    *(m.Certificate, m.Revocations),
    *(m.AuditFinding, m.AuditVerdict),
    *(m.NetworkCoordinate, NodeRecord, StageOffer),
    *(Manifest, ManifestPart, ManifestTensor),
)
WIRE_CLASSES: Final = (*TAGS.values(), *BODIES)
_MANY_BYTES: Final = 64
_MANY_ITEMS: Final = 6


def of_kind(kind: Kind) -> st.SearchStrategy[Any]:
    """Valid values of a field kind. Raises `LookupError` for a kind it has not heard of."""
    match kind:
        case Whole(high, low):
            return st.integers(low, high)
        case Real(high, low):
            return st.floats(low, high, allow_nan=False)
        case Flag():
            return st.booleans()
        case Bytes(high, low):
            return st.binary(min_size=low, max_size=min(high, low + _MANY_BYTES))
        case Text(high):
            return st.text(st.characters(codec="utf-8"), max_size=min(high, _MANY_BYTES) // 4)
        case Items(inner, high):
            return st.lists(of_kind(inner), max_size=min(high, _MANY_ITEMS)).map(tuple)
        case Maybe(inner):
            return st.none() | of_kind(inner)
        case SignedField(of):
            bodies = of_kind(Bytes(of.MAX_BYTES))
            return st.builds(Signed, body=bodies, signature=of_kind(Bytes(SIGNATURE_BYTES, SIGNATURE_BYTES)))
        case Struct(cls):
            return of_class(cls)
    raise LookupError(f"no strategy for {kind}")


def of_class(cls: type) -> st.SearchStrategy[Any]:
    """Valid instances of a message class."""
    if cls is NodeBlock:
        return blocks()
    return st.builds(cls, **{name: of_kind(kind) for name, kind in fields_of(cls)})


@st.composite
def blocks(draw: st.DrawFn) -> NodeBlock:
    """Node blocks: parents before children, confidences already on the wire's grid."""
    size = draw(st.integers(0, 12))
    parents = bytes(draw(st.integers(0, index)) for index in range(size))
    tokens = draw(st.lists(st.integers(0, limits.MAX_TOKEN_ID), min_size=size, max_size=size))
    return NodeBlock(parents, tuple(tokens), draw(st.binary(min_size=size, max_size=size)))


def least(kind: Kind) -> Any:
    """The smallest valid value of a kind."""
    match kind:
        case Whole() | Real():
            return kind.low
        case Flag():
            return False
        case Bytes():
            return bytes(kind.low)
        case Text():
            return ""
        case Items():
            return ()
        case Maybe():
            return None
        case Struct(cls):
            return least_of(cls)
    raise LookupError(f"no least value for {kind}")


def least_of(cls: type) -> Any:
    """The smallest valid instance of a class."""
    return cls(**{name: least(kind) for name, kind in fields_of(cls)})


def allowed(kind: Kind) -> Iterator[Any]:
    """Values that lie just within the bounds of a kind."""
    match kind:
        case Whole(high, low) | Real(high, low):
            yield from (low, high)
        case Flag():
            yield from (False, True)
        case Bytes(high, low):
            yield from (bytes(low), bytes(high))
        case Text(high):
            yield from ("", "x" * high, "é" * (high // 2))
        case Items(inner, high):
            yield from ((), (least(inner),) * high)
            yield from ((value,) for value in allowed(inner))
        case Maybe(inner):
            yield None
            yield from allowed(inner)
        case SignedField(of):
            yield Signed(bytes(of.MAX_BYTES), bytes(SIGNATURE_BYTES))
        case Struct(cls):
            yield from _allowed_in(cls)


def _allowed_in(cls: type) -> Iterator[Any]:
    if cls is NodeBlock:
        yield siblings(MAX_BLOCK_NODES, token=limits.MAX_TOKEN_ID)
        return
    for name, kind in fields_of(cls):
        for value in allowed(kind):
            yield dataclasses.replace(least_of(cls), **{name: value})


def refused(kind: Kind) -> Iterator[Any]:
    """Values that lie just outside the bounds of a kind."""
    match kind:
        case Whole(high, low):
            yield from (low - 1, high + 1)
        case Real(high, low):
            yield from (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan, math.inf)
        case Flag():
            yield from (0, 1, "")
        case Bytes(high, low):
            yield from (bytes(size) for size in (low - 1, high + 1) if size >= 0)
        case Text(high):
            yield from ("x" * (high + 1), "é" * (high // 2 + 1), "\ud800")
        case Items(inner, high):
            yield (least(inner),) * (high + 1)
            yield from ((value,) for value in refused(inner))
        case Maybe(inner):
            yield from refused(inner)
        case SignedField(of):
            yield Signed(bytes(of.MAX_BYTES + 1), bytes(SIGNATURE_BYTES))
            yield Signed(b"", bytes(SIGNATURE_BYTES - 1))
        case Struct(cls):
            yield from _refused_in(cls)


def _refused_in(cls: type) -> Iterator[Any]:
    if cls is NodeBlock:
        yield siblings(MAX_BLOCK_NODES + 1, token=0)
        yield siblings(1, token=limits.MAX_TOKEN_ID + 1)
        return
    for name, kind in fields_of(cls):
        for value in refused(kind):
            yield _changed(least_of(cls), name, value)


def _changed(value: Any, name: str, field: object) -> Any:
    """A copy with another field, which its class may refuse."""
    changed = copy.copy(value)
    object.__setattr__(changed, name, field)
    return changed


def siblings(size: int, *, token: int) -> NodeBlock:
    """A block of siblings of the base; its size is not checked."""
    return NodeBlock(bytes(size), (token,) * size, bytes(size))


def raw(value: Any) -> Any:
    """The wire form of a value without any check."""
    if dataclasses.is_dataclass(value):
        values: list[Any] = []
        added: list[Any] = []
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if isinstance(part, Sampling):
                *inlined, shaping, constraint = raw(part)
                values += inlined
                added += [shaping, constraint]
            else:
                values.append(raw(part))
        return values + added
    if isinstance(value, list | tuple):
        return [raw(item) for item in value]
    return value
