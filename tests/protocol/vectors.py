"""The golden test vectors in `protocol/vectors`: where they lie and how values are written in them."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from cosine_protocol.fields import Items, Kind, Maybe, Struct, wire_fields_of

FOLDER: Final = Path(__file__).parents[2] / "protocol" / "vectors"
INLINED: Final = "sampling"


def read(name: str) -> Any:
    """The content of one vector file."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def write(name: str, content: Any) -> None:
    """Write one vector file."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def as_json(value: Any) -> Any:
    """A message as JSON: bytes in hex, tuples as lists, nested messages as objects, inlined ones as on the wire."""
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


def schema(cls: type) -> dict[str, Any]:
    """The kind and bounds of every field of a wire class, in wire order."""
    return {name: _described(kind) for name, kind in wire_fields_of(cls)}


def _described(kind: Kind) -> dict[str, Any]:
    if isinstance(kind, Struct):
        return {"kind": "Struct", "fields": schema(kind.cls)}
    if isinstance(kind, Items):
        return {"kind": "Items", "of": _described(kind.kind), "high": kind.high}
    if isinstance(kind, Maybe):
        return {"kind": type(kind).__name__, "of": _described(kind.kind)}
    return {"kind": type(kind).__name__, **as_json(kind)}
