"""The stages of a node's start on a terminal: one line each, with how long it took."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text


@dataclass(frozen=True, slots=True)
class StartStage:
    """One stage of a start. A stage that draws bars of its own gets no spinner beside them."""

    sentence: str
    draws_bars: bool = False


STAGES: Final[Mapping[str, StartStage]] = {
    "fetching": StartStage("Fetching {model} from the Hugging Face hub", draws_bars=True),
    "loading": StartStage("Loading {model}", draws_bars=True),
    "measuring": StartStage("Measuring {model} on this machine"),
    "joining": StartStage("Joining the network {network}"),
    "announcing": StartStage("Announcing for {target}"),
}
"""The stage that each event of a start begins."""


class StartProgress:
    """Follows the events of a node through the stages of its start, which any other event ends; `close` ends it."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._sentence = ""
        self._began_s = 0.0
        self._status: Status | None = None

    def follow(self, event: str, fields: Mapping[str, object]) -> None:
        """The stage before this event is over; the event may begin another."""
        self._end(is_done=True)
        stage = STAGES.get(event)
        if stage is None:
            return
        self._sentence, self._began_s = stage.sentence.format(**fields), self._clock()
        if stage.draws_bars:
            self._console.print(Text(f"{self._sentence} ..."))
        else:
            self._status = self._console.status(Text(self._sentence))
            self._status.start()

    def close(self) -> None:
        """Leave the terminal as it was, though the stage may not have ended well."""
        self._end(is_done=False)

    def _end(self, *, is_done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if is_done and self._sentence:
            took = f"{self._clock() - self._began_s:.1f} s"
            self._console.print(Text.assemble(("✓ ", "green"), self._sentence, (f"  {took}", "dim")))
        self._sentence = ""
