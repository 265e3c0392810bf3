"""Files that strangers may have made, read up to a bound: a file with a hole in it may claim a terabyte."""

import json
from pathlib import Path
from typing import Any, Final

MAX_CONFIG_BYTES: Final = 16 << 20  # The longest, an index of 100,000 weights, has half of them.


def read_bounded(file: Path, *, most_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """All of a file. Raises `ValueError` where it is longer, and `OSError`."""
    with file.open("rb") as opened:
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is longer than {most_bytes >> 20} MiB")
    return data


def read_json(file: Path, *, most_bytes: int = MAX_CONFIG_BYTES) -> Any:
    """The value in a file of JSON. Raises `ValueError` for another or a longer one, `RecursionError`, `OSError`."""
    return json.loads(read_bounded(file, most_bytes=most_bytes).decode("utf-8"))
