"""Reading files from strangers up to a bound: a sparse file may claim a terabyte."""

import json
from pathlib import Path
from typing import Any, Final

MAX_CONFIG_BYTES: Final = 16 << 20  # Twice the longest file, an index of 100,000 weights.


def read_bounded(file: Path, *, most_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """Read a file. Raises `ValueError` if it is longer than `most_bytes`, and `OSError`."""
    with file.open("rb") as opened:
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is longer than {most_bytes >> 20} MiB")
    return data


def read_json(file: Path, *, most_bytes: int = MAX_CONFIG_BYTES) -> Any:
    """Read a JSON file. Raises `ValueError` if it is invalid or too long, `RecursionError`, `OSError`."""
    return json.loads(read_bounded(file, most_bytes=most_bytes).decode("utf-8"))
