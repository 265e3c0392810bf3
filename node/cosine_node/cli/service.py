"""`cosine-node service`: a systemd unit that keeps a node running."""

import getpass
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_node.cli.configuration import JOIN
from cosine_node.cli.join import parse_role
from cosine_node.cli.options import AsJson
from cosine_protocol.errors import UsageError

COMMANDS: Final = (JOIN, "bootstrap", "serve")
STOP_S: Final = 45
"""Longer than a node takes to drain, to say goodbye and to end its daemon."""

USAGE_EXIT: Final = 2
NAME: Final = "cosine-node"
PATH_OPTIONS: Final = frozenset({"identity"})
MODEL_OPTIONS: Final = frozenset({"model", "target"})


def service(
    context: typer.Context,
    system: Annotated[bool, typer.Option("--system", help="For the whole machine, not for your session.")] = False,
    command: Annotated[
        str, typer.Option("--for", help="The command to keep running: join, bootstrap or serve.")
    ] = JOIN,
    user: Annotated[
        str | None, typer.Option(help="With --system the account it runs as; yours if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a systemd unit that runs `cosine-node join` with the options that follow, and how to install it."""
    if command not in COMMANDS:
        raise UsageError(f"--for must be one of {', '.join(COMMANDS)}, not {command!r}.")
    if user is not None and not system:
        raise UsageError("--user goes with --system; without it the unit runs as you.")
    root = context.find_root()
    commands: dict[str, Any] = getattr(root.command, "commands", {})
    if command not in commands:
        raise UsageError(f"This installation has no command {command}; choose another with --for.")
    arguments, parameters = _arguments(context, commands[command])
    unit = unit_of(
        [*_program(), *_config(root), command, *arguments],
        environment=_environment(parameters),
        description=f"CoSine P2P: {command}",
        user=(user or getpass.getuser()) if system else None,
    )
    _print(unit, is_system=system, as_json=as_json)


def _arguments(context: typer.Context, command: Any) -> tuple[list[str], list[Any]]:
    """What the command shall get, checked by its own parser, with paths that hold in any working directory."""
    given = list(context.args)
    checked = command.make_context(command.name, given.copy(), parent=context.find_root())
    if command.name == JOIN:
        parse_role(checked.params["role"])
    fixed = {
        str(value): str(Path(value).expanduser().absolute())
        for parameter in command.params
        for value in _values(checked.params.get(parameter.name))
        if _is_path(parameter.name, value)
    }
    return [fixed.get(argument, _with_path(argument, fixed)) for argument in given], command.params


def _values(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]


def _is_path(parameter: str, value: Any) -> bool:
    is_folder = parameter in MODEL_OPTIONS and Path(str(value)).expanduser().is_dir()
    return parameter in PATH_OPTIONS or is_folder


def _with_path(argument: str, fixed: Mapping[str, str]) -> str:
    """The same for `--option=VALUE`."""
    option, equals, value = argument.partition("=")
    return f"{option}={fixed[value]}" if equals and option.startswith("--") and value in fixed else argument


def _program() -> list[str]:
    return [sys.executable, "-m", "cosine_node"]


def _config(root: Any) -> list[str]:
    named: Path | None = root.params.get("config")
    return ["--config", str(named.absolute())] if named else []


def _environment(parameters: Sequence[Any]) -> dict[str, str]:
    """The variables that set options now; a service does not inherit them."""
    names = [str(parameter.envvar) for parameter in parameters if parameter.envvar]
    return {name: os.environ[name] for name in names if name in os.environ}


def unit_of(program: Sequence[str], *, environment: Mapping[str, str], description: str, user: str | None) -> str:
    """A unit file; with `user` for the whole machine, else for the session of whoever installs it."""
    network = ["Wants=network-online.target", "After=network-online.target"] if user else []
    lines = [
        "[Unit]",
        f"Description={description}",
        *network,
        "# A network that is away comes back; go on trying.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(quoted, program))}",
        *(f"Environment={quoted(f'{name}={value}', expands=False)}" for name, value in environment.items()),
        *([f"User={user}"] if user else []),
        "Restart=on-failure",
        "RestartSec=5",
        "# Options that cannot be are not mended by trying again.",
        f"RestartPreventExitStatus={USAGE_EXIT}",
        "# Only the node gets SIGTERM: it still needs its network daemon to say goodbye.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if user else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def quoted(argument: str, *, expands: bool = True) -> str:
    """An argument as systemd reads it; with `expands` where it would also replace variables."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    text = text.replace("$", "$$") if expands else text
    is_plain = bool(text) and not any(letter.isspace() or letter in "\"';\\" for letter in text)
    return text if is_plain else f'"{text}"'


def _print(unit: str, *, is_system: bool, as_json: bool) -> None:
    folder = "/etc/systemd/system" if is_system else "~/.config/systemd/user"
    file = f"{folder}/{NAME}.service"
    control = "sudo systemctl" if is_system else "systemctl --user"
    if as_json:
        sys.stdout.write(json.dumps({"unit": unit, "file": file}) + "\n")
        return
    sys.stdout.write(unit)
    stay = "" if is_system else "\n  loginctl enable-linger     # so that it runs while you are logged out"
    sys.stderr.write(
        f"Save it as {file}, then:\n  {control} daemon-reload\n  {control} enable --now {NAME}{stay}\n"
    )
