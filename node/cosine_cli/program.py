"""The program of `cosine` and `cosine-node`: commands, configuration, and the exit code and sentence of each error.

The commands of a client are here; those of nodes are found by the entry point `node` of `OF_NODES`, where the
distribution `cosine-node` is installed.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_cli.audit import audit
from cosine_cli.chat import chat
from cosine_cli.configuration import (
    DOCTOR,
    commands_of,
    defaults_by_command,
    read_config,
    refuse_unknown_names,
)
from cosine_cli.generate import generate
from cosine_cli.serve import serve
from cosine_cli.status import status
from cosine_protocol.__version__ import __version__
from cosine_protocol.errors import CosineError, UsageError
from cosine_terminal.companions import NODES, OF_NODES, installed_part, tui
from cosine_terminal.help_screen import ALL, HELP, Everyday, Group, add_command
from cosine_terminal.interrupts import raise_on_interrupt
from cosine_terminal.options import spread_peers
from cosine_terminal.packages import missing_text
from cosine_terminal.printing import FAILURE_EXIT, INTERRUPT_EXIT, USAGE_EXIT, LogLines, show
from cosine_terminal.waiting import clear

LOG = logging.getLogger(__name__)

LEAVING_AT_ONCE: Final = frozenset({"generate", "status", "audit", "suggest", DOCTOR})
"""Commands that Ctrl-C ends immediately (`interrupts`); the others first stop what they have started."""

NODE_PROGRAM: Final = "cosine-node"
ASKING_PROGRAM: Final = "cosine"

TO_USE: Final = f"To use a swarm: {ASKING_PROGRAM} --help"
TO_GIVE: Final = f"To give a machine to a swarm: {NODE_PROGRAM} --help"

Commands = Mapping[str, Mapping[Callable[..., None] | typer.Typer, str]]

USE, GIVE = Everyday("Use a swarm"), Everyday("Give a machine to a swarm")
"""The heading of the commands of `cosine`; the others are those of `cosine-node`."""

COMMANDS: Final[Commands] = {
    USE: {
        chat: "chat LINK",
        generate: 'generate "Once upon a time" --initial-peers ADDRESS',
        serve: "serve LINK --port 8000",
        tui: "tui --initial-peers ADDRESS",
        status: "status LINK --watch",
        audit: "audit generation.json --initial-peers ADDRESS",
    },
    **(installed_part(OF_NODES, "node") or {GIVE: {NODES.absent("doctor", "Look for what is wrong."): "doctor"}}),
}
"""The commands by heading of the help, each with an example. ADDRESS is an address that a node prints, LINK one
or an invitation."""

app = typer.Typer(
    name=NODE_PROGRAM,
    cls=Group,
    help="Volunteers' machines generate text together; it is exactly the target's.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)


def show_version(is_wanted: bool) -> None:
    if is_wanted:
        sys.stdout.write(f"{NODE_PROGRAM} {__version__}\n")
        raise typer.Exit


@app.callback()
def configure(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="COSINE_CONFIG", help="TOML file of options, one table per command."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log to stderr.")] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that apply to every command."""
    if context.invoked_subcommand not in LEAVING_AT_ONCE:
        raise_on_interrupt()
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(LogLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, handlers=[lines])
    logging.getLogger("asyncio").addFilter(is_worth_logging)
    command, commands = context.invoked_subcommand or "", commands_of(context)
    tables = read_config(config)
    refuse_unknown_names(tables, commands, command=command, file=config)
    context.default_map = defaults_by_command(tables, commands)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """False for asyncio's warning about a child that ended while a signal was sent to it."""
    return not str(record.msg).startswith("Unknown child process pid")


for heading, commands in COMMANDS.items():
    for command, example in commands.items():
        of = ASKING_PROGRAM if heading is USE else NODE_PROGRAM
        add_command(app, command, heading=heading, example=f"{of} {example}")


def run(given: Sequence[str], *, name: str = NODE_PROGRAM) -> None:
    """Run a command. On an error print its sentence and exit with its code.

    Both programs run all commands; the help of each shows its own.
    """
    try:
        program: Any = typer.main.get_command(app)
        for command in program.commands.values():
            command.hidden = (command.rich_help_panel == USE) != (name == ASKING_PROGRAM)
        program.epilog = TO_GIVE if name == ASKING_PROGRAM else TO_USE
        if given and not {HELP, ALL} & set(given):
            # Usage errors are plain sentences, without the frames of the help.
            program.rich_markup_mode = None
        program(args=spread_peers(given), prog_name=name)
    except KeyboardInterrupt:
        sys.exit(INTERRUPT_EXIT)
    except (ModuleNotFoundError, RuntimeError) as missing:
        if not (sentence := missing_text(missing)):
            raise
        code = USAGE_EXIT
    except CosineError as error:
        sentence = str(error)
        code = USAGE_EXIT if isinstance(error, UsageError) else FAILURE_EXIT
    except OSError as error:
        LOG.debug("system error", exc_info=True)
        file = f" ({error.filename})" if error.filename else ""
        sentence = f"{error.strerror or error}{file}; `cosine-node doctor` looks for what is wrong on this machine."
        code = FAILURE_EXIT
    else:
        return
    if "--json" in given:
        sys.stdout.write(json.dumps({"error": sentence}) + "\n")
    clear(sys.stderr)
    show(sys.stderr, f"Error: {sentence}\n")
    sys.exit(code)
