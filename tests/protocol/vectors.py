"""Reading and writing the golden vectors in `protocol/vectors`."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final, TypeVar

from cosine_protocol.codec import Message, encode, encode_frame
from cosine_protocol.fields import TAG_OF, Bytes, Items, Kind, Maybe, Struct, unpack_fields, wire_fields_of
from cosine_protocol.identity import Signed, SignedBody, SignedField

_T = TypeVar("_T")

FOLDER: Final = Path(__file__).parents[2] / "protocol" / "vectors"
INLINED: Final = "sampling"


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def add_frame(message: Message) -> None:
    """Append the vector of a message. Existing vectors are never changed."""
    frame = {"message": type(message).__name__, "tag": TAG_OF[type(message)], "fields": as_json(message)}
    frames = [*read("frames"), {**frame, "frame": encode_frame(encode(message)).hex()}]
    (FOLDER / "frames.json").write_text(json.dumps(frames, indent=1) + "\n")


def as_json(value: Any) -> Any:
    """Convert a message to JSON: bytes in hex, nested messages as objects, inlined ones as on the wire."""
    if dataclasses.is_dataclass(value):
        written: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            inner = as_json(getattr(value, field.name))
            written |= inner if field.name == INLINED else {field.name: inner}
        return written
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def of_json(cls: type[_T], written: dict[str, Any]) -> _T:
    found: _T = unpack_fields(cls, _wire(Struct(cls), written))
    return found


def _wire(kind: Kind, written: Any) -> Any:
    if written is None:
        return None
    match kind:
        case SignedField():
            return [bytes.fromhex(written["body"]), bytes.fromhex(written["signature"])]
        case Struct(cls):
            return [_wire(each, written.get(name)) for name, each in wire_fields_of(cls)]
        case Maybe(inner):
            return _wire(inner, written)
        case Items(inner, _):
            return [_wire(inner, item) for item in written]
        case Bytes():
            return bytes.fromhex(written)
    return written


def schema(cls: type) -> dict[str, Any]:
    """The kind and bounds of every field of a wire class, in wire order."""
    return {name: _described(kind) for name, kind in wire_fields_of(cls)}


def signed_schema(cls: type[SignedBody]) -> dict[str, Any]:
    return {"body": _described(Bytes(cls.MAX_BYTES)), "signature": schema(Signed)["signature"]}


def _described(kind: Kind) -> dict[str, Any]:
    if isinstance(kind, SignedField):
        return {"kind": "Struct", "fields": signed_schema(kind.of)}
    if isinstance(kind, Struct):
        return {"kind": "Struct", "fields": schema(kind.cls)}
    if isinstance(kind, Items):
        return {"kind": "Items", "of": _described(kind.kind), "high": kind.high}
    if isinstance(kind, Maybe):
        return {"kind": type(kind).__name__, "of": _described(kind.kind)}
    return {"kind": type(kind).__name__, **as_json(kind)}
