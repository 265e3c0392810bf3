"""Output of the commands: exit codes, text without terminal control characters, and values for JSON."""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from cosine_terminal.waiting import clear

FAILURE_EXIT: Final = 1
"""The command failed, or found a problem."""

USAGE_EXIT: Final = 2
"""Bad usage, as in click: the same command would fail again, so a systemd unit does not restart after it."""

INTERRUPT_EXIT: Final = 130
"""128 + SIGINT, the code of an interrupted command."""

PIPE_EXIT: Final = 141
"""128 + SIGPIPE, the code of a command whose reader has closed the pipe."""

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters of a terminal (ECMA-48, C0 and C1), except tab and line feed."""


def say(sentence: str) -> None:
    """Report the progress of a command on stderr; stdout is for its result."""
    clear(sys.stderr)
    show(sys.stderr, f"  {sentence}\n")


def show(stream: TextIO, text: str) -> None:
    """Write and flush text; control characters are replaced only on a terminal."""
    stream.write(without_controls(text) if stream.isatty() else text)
    stream.flush()


class LogLines(logging.Formatter):
    """Formats the log for people, without control characters, as messages may quote peers."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


def printable(text: str) -> str:
    """Replace all unprintable characters of an untrusted text."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def without_controls(text: str) -> str:
    """Replace the control characters of an untrusted text, except tabs and line feeds."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def short_peer_id(peer_id: str) -> str:
    """Return the end of a peer id, as all begin with the same characters."""
    return f"…{peer_id[-8:]}"


def json_safe(value: Any) -> Any:
    """Convert dataclasses, mappings, tuples and bytes to JSON types; bytes become hex."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: json_safe(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): json_safe(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
