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
    return {command: _with_underscores(table) for command, table in tables.items()}


def _with_underscores(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        # A table within a table is that of an action, whose name is no option.
        **{key: _with_underscores(value) for key, value in table.items() if isinstance(value, dict)},
        **{key.replace("-", "_"): value for key, value in table.items() if not isinstance(value, dict)},
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
        defaults[name] = _defaults_of(commands[name], table)
    return defaults


def _defaults_of(command: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    options, actions = spellings(command), getattr(command, "commands", {})
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        if option := options.get(key):
            is_one_of_several = getattr(option, "multiple", False) and isinstance(value, str)
            defaults[option.name] = [value] if is_one_of_several else value
        elif key in actions:
            defaults[key] = _defaults_of(actions[key], value)
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
        if table == command or (table, command) == (JOIN, DOCTOR):
            _refuse_unknown_options(given, commands[table], table, place)


def _refuse_unknown_options(given: Mapping[str, Any], command: Any, table: str, place: Path) -> None:
    known, actions = spellings(command), getattr(command, "commands", {})
    for key, value in given.items():
        if key in actions and isinstance(value, dict):
            _refuse_unknown_options(value, actions[key], f"{table}.{key}", place)
        elif key not in known:
            near = [name.replace("_", "-") for name in get_close_matches(key, (*known, *actions), n=1)]
            hint = f"; did you mean {table}.{near[0]}?" if near else "."
            named, words = key.replace("_", "-"), table.replace(".", " ")
            raise UsageError(f"{table}.{named} in {place} is not an option of `cosine-node {words}`{hint}")
