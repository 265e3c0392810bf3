"""What the laboratory adds, the distribution `cosine-lab`: found by its entry points, where it is installed."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from cosine_protocol.errors import UsageError

COMMANDS: Final = "cosine_node.commands"
"""The entry points of further commands, by name."""


def laboratory_part(group: str, name: str, *, install: str = "pip install ./lab") -> Any:
    """What an entry point of the laboratory leads to. Raises `UsageError` where the laboratory is not installed."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as missing:
            # An editable installation outlives the checkout it leads to.
            if (missing.name or "").partition(".")[0] != entry.module.partition(".")[0]:
                raise
    raise UsageError(f"This needs the laboratory: `{install}` in a checkout of the project.")


def laboratory_command(name: str, does: str) -> Callable[..., None]:
    """A command of the laboratory; without it one that `does` nothing but say how to install it."""
    try:
        command: Callable[..., None] = laboratory_part(COMMANDS, name)
    except UsageError as error:
        sentence = str(error)
    else:
        return command

    def absent() -> None:
        raise UsageError(sentence)

    absent.__name__, absent.__doc__ = name, does
    return absent


def is_absent(command: Callable[..., None]) -> bool:
    """True for what stands in for a command of a laboratory that is not installed."""
    return command.__module__ == __name__
