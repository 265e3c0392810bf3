"""Text and JSON as the commands print them, and the one way to a terminal of what a stranger may have written."""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from cosine_node.terminal.waiting import clear

FAILURE_EXIT: Final = 1
"""The command could not do what was asked, or what it found is bad."""

USAGE_EXIT: Final = 2
"""Bad usage, the code of click: the same command fails again, so a systemd unit does not restart after it."""

INTERRUPT_EXIT: Final = 130
"""128 + SIGINT, as shells report a command that was interrupted."""

PIPE_EXIT: Final = 141
"""128 + SIGPIPE, as shells report a command that nobody reads from any more."""

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What steers a terminal (ECMA-48, C0 and C1), without tab and line feed."""


def say(sentence: str) -> None:
    """Tell on stderr how far a long command is; stdout is for its result."""
    clear(sys.stderr)
    show(sys.stderr, f"  {sentence}\n")


def show(stream: TextIO, text: str) -> None:
    """Write text at once; on a terminal without what would steer it, elsewhere every character as it is."""
    stream.write(without_controls(text) if stream.isatty() else text)
    stream.flush()


class LogLines(logging.Formatter):
    """The log for people: what peers said of themselves or of errors steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


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
