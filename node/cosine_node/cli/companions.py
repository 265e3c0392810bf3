"""Commands and parts that the project's other distributions add. They are found by entry points."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.serving.learner import LearnerReport

COMMANDS: Final = "cosine_node.commands"
"""The entry points of further commands, by name."""
LEARNING: Final = "cosine_node.learning"
"""The entry points of drafters that learn: `learner` makes one, `reports` reads the state of all of this user."""


@dataclass(frozen=True, slots=True)
class Companion:
    """A distribution beside the node: what it is to people, and the command that installs it."""

    what: str
    install: str

    def missing(self) -> UsageError:
        return UsageError(f"This needs {self.what}: `{self.install}` in a checkout of the project.")

    def part(self, group: str, name: str) -> Any:
        """What an entry point leads to. Raises `UsageError` where the distribution is not installed."""
        found = installed_part(group, name)
        if found is None:
            raise self.missing()
        return found

    def command(self, name: str, does: str) -> Callable[..., None]:
        """A command of it. Without it, one that `does` nothing but say how to install it."""
        command: Callable[..., None] | None = installed_part(COMMANDS, name)
        if command is not None:
            return command

        def absent() -> None:
            raise self.missing()

        absent.__name__, absent.__doc__ = name, does
        return absent


LABORATORY: Final = Companion("the laboratory", "pip install ./node/train ./lab")
SIMULATION: Final = Companion("the laboratory", "pip install --no-deps ./lab")
"""The laboratory as far as it simulates, which takes none of its libraries."""
TRAINING: Final = Companion("the distribution for training", "pip install ./node/train")


def installed_part(group: str, name: str) -> Any:
    """What an entry point leads to, None where nothing that is installed has it."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as missing:
            # An editable installation outlives the checkout it leads to.
            if (missing.name or "").partition(".")[0] != entry.module.partition(".")[0]:
                raise
    return None


def learner_reports() -> "Mapping[str, LearnerReport]":
    """The drafters of this user that learn, by their peer ids; none where training is not installed."""
    read: Callable[[], Mapping[str, LearnerReport]] | None = installed_part(LEARNING, "reports")
    return {} if read is None else read()


def is_absent(command: Callable[..., None]) -> bool:
    """True for what stands in for a command that is not installed."""
    return command.__module__ == __name__
