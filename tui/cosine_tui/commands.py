"""The monitor's commands: each can be typed as `/name`, found in the command palette, and most have a key.

No key is a printable one: what is typed is text.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorCommand:
    """One command. `key` is Textual's name of its key, `argument` what may follow the name on the prompt line.

    `footer` is its word at the bottom of the screen, "" where it is not shown there.
    """

    name: str
    what: str
    key: str = ""
    argument: str = ""
    footer: str = ""

    @property
    def key_label(self) -> str:
        """The key as people write it: `F1`, `Ctrl+G`."""
        parts = self.key.split("+")
        return "+".join(part.upper() if part[:1] == "f" and part[1:].isdigit() else part.title() for part in parts)

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS: Final = (
    MonitorCommand(name="help", what="keys, commands and signs", key="f1", footer="Help"),
    MonitorCommand(name="swarm", what="the nodes; Enter shows all of the selected one", key="f2"),
    MonitorCommand(name="requests", what="the requests and who drafts for whom; Enter as above", key="f3"),
    MonitorCommand(name="request", what="the text of a request, or of request N", key="f4", argument="N"),
    MonitorCommand(name="events", what="what happened", key="f5"),
    MonitorCommand(name="marks", what="each drafter's letter before its tokens", key="f6"),
    MonitorCommand(name="before", what="the request before the one that is shown", key="f7"),
    MonitorCommand(name="after", what="the request after the one that is shown", key="f8"),
    MonitorCommand(name="latest", what="whatever is written now, whoever asked for it", key="f9"),
    MonitorCommand(name="details", what="everything about the shown request", key="ctrl+o"),
    MonitorCommand(name="cancel", what="end the shown request, if it is yours", key="ctrl+g", footer="Cancel"),
    MonitorCommand(name="copy", what="its text, or a node's peer id, for pasting", key="ctrl+y", footer="Copy"),
    MonitorCommand(name="filter", what="show only nodes and requests with these words", argument="WORDS"),
    MonitorCommand(name="sort", what="order the lists; the key takes the next one", key="ctrl+s", argument="ORDER"),
    MonitorCommand(name="theme", what="dark or light", key="ctrl+t"),
    MonitorCommand(name="quit", what="leave; asks while a request of yours goes on", key="ctrl+q", footer="Quit"),
)
"""In the order in which help lists them."""
BY_NAME: Final = {command.name: command for command in COMMANDS}
"""The commands by their names."""
