"""The configuration file: can it be read, and does every name in it mean something?"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosine_node.doctor.finding import Finding, failure, fine, warning

WHAT: Final = "configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A configuration file as read. `is_named` if the user named it, so that it has to be there."""

    file: Path
    is_named: bool
    is_there: bool
    error: str = ""
    tables: Mapping[str, Any]


def read_settings(file: Path, *, is_named: bool) -> Settings:
    error = ""
    tables: dict[str, Any] = {}
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return Settings(file=file, is_named=is_named, is_there=False, tables={})
    except OSError as caught:
        error = caught.strerror or str(caught)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as caught:
        error = str(caught)
    return Settings(file=file, is_named=is_named, is_there=True, error=error, tables=tables)


def judge_settings(settings: Settings, unknown: Sequence[str]) -> Finding:
    """`unknown` are names in the file that no command has."""
    file = settings.file
    if not settings.is_there:
        if settings.is_named:
            return failure(WHAT, f"there is no file {file}", "Correct --config, or drop it to use no file.")
        return fine(WHAT, f"no {file}; options come from the command line and the environment")
    if settings.error:
        return failure(
            WHAT, f"{file} cannot be read: {settings.error}", "Correct it, or name another with --config."
        )
    if unknown:
        fix = f"Correct or remove it in {file}; `cosine-node COMMAND --help` lists the options."
        return warning(WHAT, f"{', '.join(unknown)} means nothing to any command", fix)
    return fine(WHAT, f"{file} is read")
