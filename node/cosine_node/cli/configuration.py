"""The configuration file: one table of options for each command."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import typer
from platformdirs import user_config_dir

from cosine_protocol.errors import UsageError

# `doctor` is `join --check` and also reads the table of `join`.
DOCTOR: Final = "doctor"
JOIN: Final = "join"

Tables = Mapping[str, Mapping[str, Any]]


def default_config_file() -> Path:
    return Path(user_config_dir("cosine-p2p")) / "config.toml"


def read_config(file: Path | None) -> dict[str, Any]:
    """Read the tables of a TOML file; keys may be written with - or _. Raises `UsageError`."""
    path = file or default_config_file()
    if file is None and not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The configuration file {path} cannot be read: {error}.") from None
    if lost := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise UsageError(
            f"{lost[0]} in {path} is in no table; put it into that of its command, for example [{JOIN}]."
        )
    return {
        command: {key.replace("-", "_"): value for key, value in table.items()} for command, table in tables.items()
    }


def commands_of(context: typer.Context) -> dict[str, Any]:
    commands: dict[str, Any] = getattr(context.find_root().command, "commands", {})
    return commands


def spellings(command: Any) -> dict[str, Any]:
    """The options of a command by each of their names, with underscores."""
    return {
        name.lstrip("-").replace("-", "_"): option
        for option in command.params
        for name in (option.name, *option.opts)
        if name
    }


def defaults_by_command(tables: Tables, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Defaults for click: by parameter, with a list for a repeatable option.

    The table of `doctor` takes precedence over that of `join`.
    """
    defaults: dict[str, dict[str, Any]] = {}
    for name, table in {**tables, DOCTOR: {**tables.get(JOIN, {}), **tables.get(DOCTOR, {})}}.items():
        if name not in commands:
            continue
        options = spellings(commands[name])
        defaults[name] = {}
        for key, value in table.items():
            if option := options.get(key):
                is_one_of_several = getattr(option, "multiple", False) and isinstance(value, str)
                defaults[name][option.name] = [value] if is_one_of_several else value
    return defaults


def refuse_unknown_names(tables: Tables, commands: Mapping[str, Any], *, command: str, file: Path | None) -> None:
    """Raise `UsageError` for an unknown table, or an unknown key in the table of this command.

    Keys of other tables are not checked: their command may not be installed.
    """
    place = file or default_config_file()
    for table, given in tables.items():
        if table not in commands:
            near = get_close_matches(table, commands, n=1)
            hint = f"; did you mean [{near[0]}]?" if near else "."
            raise UsageError(f"[{table}] in {place} is not the table of a command{hint}")
        if table != command and (table, command) != (JOIN, DOCTOR):
            continue
        known = spellings(commands[table])
        for key in (key for key in given if key not in known):
            near = [name.replace("_", "-") for name in get_close_matches(key, known, n=1)]
            hint = f"; did you mean {table}.{near[0]}?" if near else "."
            named = key.replace("_", "-")
            raise UsageError(f"{table}.{named} in {place} is not an option of `cosine-node {table}`{hint}")
