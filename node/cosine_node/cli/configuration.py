"""What a configuration file's tables mean to the commands they are named after."""

from collections.abc import Mapping
from typing import Any, Final

DOCTOR: Final = "doctor"
JOIN: Final = "join"

Tables = Mapping[str, Mapping[str, Any]]


def spellings(command: Any) -> dict[str, Any]:
    """A command's options by every name a file may give them, with underscores."""
    return {
        name.lstrip("-").replace("-", "_"): option
        for option in command.params
        for name in (option.name, *option.opts)
        if name
    }


def defaults_by_command(tables: Tables, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Defaults as click wants them: by parameter, with a list where an option may be repeated.

    `doctor` looks at what `join` would do, so what is said of one holds for the other.
    """
    joined = {**tables, DOCTOR: {**tables.get(JOIN, {}), **tables.get(DOCTOR, {})}}
    return {name: _defaults(table, commands[name]) for name, table in joined.items() if name in commands}


def _defaults(table: Mapping[str, Any], command: Any) -> dict[str, Any]:
    options = spellings(command)
    return {options[key].name: _as_given(value, options[key]) for key, value in table.items() if key in options}


def _as_given(value: Any, option: Any) -> Any:
    is_one_of_several = getattr(option, "multiple", False) and isinstance(value, str)
    return [value] if is_one_of_several else value


def unknown_names(tables: Tables, commands: Mapping[str, Any]) -> list[str]:
    """Tables and keys of a file that no command knows, as `[table]` and `table.key`."""
    unknown = [f"[{name}]" for name in tables if name not in commands]
    known = [(name, key) for name, table in tables.items() if name in commands for key in table]
    return unknown + [f"{name}.{key}" for name, key in known if key not in spellings(commands[name])]
