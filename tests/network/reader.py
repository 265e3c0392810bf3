"""A client as a process of a host (this file as a command), and how a test asks it (`Reader`).

The argument has the options of its `AsyncClient` as JSON. Each line of stdin has the options of one text and its
`prompt`; with `is_newcomer` a client of its own joins for it. Each line of stdout has new `token_ids`, or how the
text ended: with an `error`, "" where it is whole.
"""

import asyncio
import json
import logging
import queue
import sys
import threading
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_p2p import AsyncClient
from cosine_p2p.transport.patience import JOIN_PATIENCE_S, PATIENCE_VARIABLE
from cosine_protocol.errors import CosineError
from tests.network.laboratory import Host

COMMAND: Final = (sys.executable, "-m", "tests.network.reader")
JOINED_S: Final = 120.0


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def read(client: AsyncClient, prompt: str, options: dict[str, Any]) -> None:
    """Tell a text as it comes."""
    async with aclosing(client.stream(prompt, **options)) as chunks:
        async for chunk in chunks:
            tell(token_ids=chunk.token_ids)


async def answer(client: AsyncClient, peers: list[str], given: dict[str, Any], order: dict[str, Any]) -> None:
    prompt, is_newcomer = order.pop("prompt"), order.pop("is_newcomer", False)
    try:
        if is_newcomer:
            async with AsyncClient(peers, memory=False, **given) as newcomer:
                await read(newcomer, prompt, order)
        else:
            await read(client, prompt, order)
        tell(error="")
    except CosineError as error:
        tell(error=f"{type(error).__name__}: {error}")


async def main() -> None:
    given = json.loads(sys.argv[1])
    peers = given.pop("initial_peers")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with AsyncClient(peers, memory=False, **given) as client:
        tell(joined=True)
        while line := await reader.readline():
            await answer(client, peers, given, json.loads(line))


@dataclass(slots=True)
class Text:
    """A text as it was told: its tokens, and "" or why it failed."""

    token_ids: list[int] = field(default_factory=list)
    error: str | None = None


class Reader:
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
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompt": prompt, **options}) + "\n")
        self.process.stdin.flush()
        return Text()

    def hear(self, text: Text, *, within_s: float, tokens: int = sys.maxsize) -> Text:
        """The text with so many tokens, or to its end. Raises `queue.Empty` where nothing was told for so long."""
        while text.error is None and len(text.token_ids) < tokens:
            line = self._next(within_s)
            text.token_ids += line.get("token_ids", ())
            text.error = line.get("error")
        return text

    def ask(self, prompt: str, *, within_s: float, **options: Any) -> Text:
        """A text to its end."""
        return self.hear(self.begin(prompt, **options), within_s=within_s)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
