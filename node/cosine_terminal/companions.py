"""Commands and parts of the project's other distributions, found by entry points."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

import typer

from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import takes_anything

OF_NODES: Final = "cosine.commands"
"""The entry point `node` with the commands of nodes."""
PARTS: Final = "cosine.parts"
"""The entry points of what commands of a client use of nodes."""
COMMANDS: Final = "cosine_node.commands"
"""The entry points of further commands, by name."""


@dataclass(frozen=True, slots=True)
class Companion:
    """Another distribution of the project, and the command that installs it."""

    what: str
    install: str

    def missing(self) -> UsageError:
        return UsageError(f"This needs {self.what}: `{self.install}` in a checkout of the project.")

    def part(self, group: str, name: str) -> Any:
        """The object of an entry point. Raises `UsageError` if the distribution is not installed."""
        found = installed_part(group, name)
        if found is None:
            raise self.missing()
        return found

    def command(self, name: str, does: str) -> Callable[..., None] | typer.Typer:
        """A command of the distribution, or a placeholder. `does` is the help of that."""
        command: Callable[..., None] | typer.Typer | None = installed_part(COMMANDS, name)
        if command is not None:
            return command
        return self.absent(name, does)

    def absent(self, name: str, does: str) -> Callable[..., None]:
        """A placeholder for a command, which says how to install it."""

        @takes_anything
        def absent() -> None:
            raise self.missing()

        absent.__name__, absent.__doc__ = name, does
        return absent


NODES: Final = Companion("the distribution for nodes", "pip install . './node[torch]'")
LABORATORY: Final = Companion("the laboratory", "pip install ./node ./node/train ./lab")
SIMULATION: Final = Companion("the laboratory", "pip install --no-deps ./lab")
"""The simulator of the laboratory, which needs no further libraries."""
TRAINING: Final = Companion("the distribution for training", "pip install ./node ./node/train")
MONITOR: Final = Companion("the monitor", "pip install '.[tui]'")


def installed_part(group: str, name: str) -> Any:
    """The object of an entry point. None if no installed distribution has it."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as missing:
            # The checkout of an editable installation may be gone.
            if (missing.name or "").partition(".")[0] != entry.module.partition(".")[0]:
                raise
    return None


@takes_anything
def tui(context: typer.Context) -> None:
    """Watch a swarm and generate in it, full-screen."""
    MONITOR.part("console_scripts", "cosine-tui")(context.args)


# Its options, and so their help, are those of the monitor.
vars(tui)["add_help_option"] = False
