"""Results of measurements as readable JSON files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cosine_terminal.printing import say

FIGURES: Final = 6
"""Number of significant figures in the files."""


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    """Write a result into a file, create its folder, and report it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    say(f"{file} is written")


def rounded(value: Any) -> Any:
    """Return the value with numbers rounded to `FIGURES` significant figures."""
    match value:
        case float():
            return float(f"{value:.{FIGURES}g}")
        case dict():
            return {key: rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [rounded(part) for part in value]
        case _:
            return value
