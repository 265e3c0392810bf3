"""Text and JSON as the commands print them."""

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What steers a terminal (ECMA-48, C0 and C1), without tab and line feed."""


def say(sentence: str) -> None:
    """Tell on stderr how far a long command is; stdout is for its result."""
    sys.stderr.write(f"  {sentence}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Text of a stranger's choosing, without the characters that would steer a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def without_controls(text: str) -> str:
    """Text of several lines of a stranger's choosing; only tabs and ends of lines still move the cursor."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def short_peer_id(peer_id: str) -> str:
    """Peer ids begin alike; their ends tell them apart."""
    return f"…{peer_id[-8:]}"


def json_safe(value: Any) -> Any:
    """Dataclasses, mappings, tuples and bytes as what JSON has; bytes in hex."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: json_safe(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): json_safe(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
