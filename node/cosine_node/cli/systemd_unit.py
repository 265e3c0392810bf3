"""`cosine-node service`: a systemd unit for a node."""

import getpass
import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_cli.configuration import JOIN, commands_of
from cosine_node.cli.roles import parse_role
from cosine_p2p.access import Access
from cosine_p2p.invitation import SCHEME, follow_invitations
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import everyday, takes_anything
from cosine_terminal.options import AsJson
from cosine_terminal.printing import USAGE_EXIT

NAME: Final = "cosine-node"

COMMANDS: Final = (JOIN, "draft", "verify", "stage", "head", "bootstrap", "serve")

STOP_S: Final = 45
"""Longer than a node takes to drain and to stop its daemon."""

# A unit runs in another folder: paths in these options become absolute, those of a model if they exist.
PATH_OPTIONS: Final = frozenset({"identity"})
MODEL_OPTIONS: Final = frozenset({"model", "target"})


@takes_anything
def service(
    context: typer.Context,
    system: Annotated[bool, everyday("--system", help="Write a system unit instead of a user unit.")] = False,
    command: Annotated[
        str,
        everyday("--for", metavar="COMMAND", help="Command of the unit, as draft, bootstrap or serve."),
    ] = JOIN,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Account that a system unit runs as. Default: yours.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a systemd unit that runs a command with the options that follow.

    The command may also come first, as in `service draft LINK`. It also tells how to install the unit.
    """
    if command == JOIN and context.args[:1] and context.args[0] in COMMANDS:
        command = context.args.pop(0)
    if command not in COMMANDS:
        raise UsageError(f"--for must be one of {', '.join(COMMANDS)}, not {command!r}.")
    if user is not None and not system:
        raise UsageError("--user goes with --system; without it the unit runs as you.")
    commands = commands_of(context)
    if command not in commands:
        raise UsageError(f"This installation has no command {command}; choose another with --for.")
    config: Path | None = context.find_root().params.get("config")
    program = [sys.executable, "-m", "cosine_node", *(["--config", str(config.absolute())] if config else [])]
    # A service does not inherit the variables that set options.
    variables = [str(option.envvar) for option in commands[command].params if option.envvar]
    unit = unit_of(
        [*program, command, *_checked_arguments(context, commands[command])],
        environment={name: os.environ[name] for name in variables if name in os.environ},
        description=f"CoSine P2P: {command}",
        user=(user or getpass.getuser()) if system else None,
    )
    folder = "/etc/systemd/system" if system else "~/.config/systemd/user"
    file = f"{folder}/{NAME}.service"
    if as_json:
        sys.stdout.write(json.dumps({"unit": unit, "file": file}) + "\n")
        return
    sys.stdout.write(unit)
    control = "sudo systemctl" if system else "systemctl --user"
    stay = "" if system else "\n  loginctl enable-linger     # keeps it running while you are logged out"
    sys.stderr.write(
        f"Save it as {file}, then:\n  {control} daemon-reload\n  {control} enable --now {NAME}{stay}\n"
    )


def _checked_arguments(context: typer.Context, command: Any) -> list[str]:
    """The arguments of a command, checked by its parser, with absolute paths."""
    given = list(context.args)
    checked = command.make_context(command.name, given.copy(), parent=context.find_root())
    if command.name == JOIN:
        parse_role(checked.params["role"])
    absolute: dict[str, str] = {}
    for option in command.params:
        value = checked.params.get(option.name)
        for text in map(str, value if isinstance(value, list | tuple) else [value] * (value is not None)):
            path = Path(text).expanduser()
            if option.name in PATH_OPTIONS or (option.name in MODEL_OPTIONS and path.exists()):
                absolute[text] = str(path.absolute())
    arguments = []
    for argument in given:
        name, equals, text = argument.partition("=")
        if argument not in absolute and name.startswith("--") and text in absolute:
            arguments.append(f"{name}{equals}{absolute[text]}")
        else:
            arguments.append(absolute.get(argument, argument))
    return _without_invitations(arguments)


def _without_invitations(arguments: Sequence[str]) -> list[str]:
    """Replace invitations by their contents, since a unit outlives them."""
    found: list[str] = []
    for argument in arguments:
        name, _, link = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if not link.startswith(SCHEME):
            found.append(argument)
            continue
        if found and not name and found[-1].replace("_", "-") == "--initial-peers":
            found.pop()
        peers, access = follow_invitations([link], Access())
        found += chain.from_iterable(("--initial-peers", peer) for peer in peers)
        if access.swarm_file is not None and access.identity_file is not None:
            found += "--swarm", str(access.swarm_file), "--identity", str(access.identity_file)
        else:
            found += access.entrance
    return found


def unit_of(program: Sequence[str], *, environment: Mapping[str, str], description: str, user: str | None) -> str:
    """The text of a unit file: a system unit with `user`, else a user unit."""
    network = ["Wants=network-online.target", "After=network-online.target"] if user else []
    lines = [
        "[Unit]",
        f"Description={description}",
        *network,
        "# Keep trying while the network is down.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(quoted, program))}",
        *(f"Environment={quoted(f'{name}={value}', expands=False)}" for name, value in environment.items()),
        *([f"User={user}"] if user else []),
        "Restart=on-failure",
        "RestartSec=5",
        "# Wrong options stay wrong.",
        f"RestartPreventExitStatus={USAGE_EXIT}",
        "# Only the node gets SIGTERM: it still needs its network daemon.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if user else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def quoted(argument: str, *, expands: bool = True) -> str:
    """Quote an argument for systemd; `expands` escapes variables too."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    text = text.replace("$", "$$") if expands else text
    is_plain = bool(text) and not any(letter.isspace() or letter in "\"';\\" for letter in text)
    return text if is_plain else f'"{text}"'
