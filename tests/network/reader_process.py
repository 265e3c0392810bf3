"""A client in a host of a laboratory (`tests.network.reader`), as a test asks it."""

import json
import queue
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_p2p.transport.patience import JOIN_PATIENCE_S, PATIENCE_VARIABLE
from tests.network.laboratory import Host

COMMAND: Final = (sys.executable, "-m", "tests.network.reader")
JOINED_S: Final = 120.0


@dataclass(slots=True)
class Text:
    """A text as it was told: its tokens, "" or why it failed, and what was measured."""

    token_ids: list[int] = field(default_factory=list)
    error: str | None = None
    found: dict[str, Any] = field(default_factory=dict)


class ReaderProcess:
    """A client that has joined. One text at a time."""

    def __init__(self, host: Host, *, join_patience_s: float = JOIN_PATIENCE_S, **options: Any) -> None:
        self.host = host
        patience = {PATIENCE_VARIABLE: f"{join_patience_s:g}"}
        self.process = host.start(*COMMAND, json.dumps(options), log="reader.log", **patience)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._next(JOINED_S) == {"joined": True}, (host.home / "reader.log").read_text()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _next(self, within_s: float) -> dict[str, Any]:
        line = self._lines.get(timeout=within_s)
        assert line is not None, (self.host.home / "reader.log").read_text()
        return line

    def begin(self, prompt: str, **options: Any) -> Text:
        """Ask for a text, which `hear` follows."""
        self._order(prompt=prompt, **options)
        return Text()

    def way_to(self, peer_id: str, role: str, *, within_s: float) -> dict[str, Any]:
        """The `way` to a peer and its `rtt_s`, or an `error`."""
        self._order(way_to=peer_id, role=role)
        return self._next(within_s)

    def _order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self, text: Text, *, within_s: float, tokens: int = sys.maxsize) -> Text:
        """The text with so many tokens, or to its end. Raises `queue.Empty` where nothing was told for so long."""
        while text.error is None and len(text.token_ids) < tokens:
            line = self._next(within_s)
            text.token_ids += line.get("token_ids", ())
            text.error = line.pop("error", None)
            if text.error is not None:
                text.found = line
        return text

    def ask(self, prompt: str, *, within_s: float, **options: Any) -> Text:
        """A text to its end."""
        return self.hear(self.begin(prompt, **options), within_s=within_s)
