"""A client as a process of a host: this file as a command, and `Reader` for tests.

The argument of the command has the options of its `AsyncClient` as JSON. Each order has the options of one text and
its `prompt`; with `is_newcomer` a new client joins for it. The answers have new `token_ids`, the last one the
`error` of the text, "" if it is complete.
"""

import asyncio
import json
import logging
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from cosine_p2p import AsyncClient
from cosine_p2p.transport.patience import JOIN_PATIENCE_S, PATIENCE_VARIABLE
from cosine_protocol.errors import CosineError
from tests.network.laboratory import Host
from tests.network.process import JsonProcess, orders, tell


async def read(client: AsyncClient, prompt: str, **options: Any) -> None:
    async with aclosing(client.stream(prompt, **options)) as chunks:
        async for chunk in chunks:
            tell(token_ids=chunk.token_ids)


async def main() -> None:
    given = json.loads(sys.argv[1])
    peers = given.pop("initial_peers")
    async with AsyncClient(peers, memory=False, **given) as client:
        tell(joined=True)
        async for order in orders():
            try:
                if order.pop("is_newcomer", False):
                    async with AsyncClient(peers, memory=False, **given) as newcomer:
                        await read(newcomer, **order)
                else:
                    await read(client, **order)
                tell(error="")
            except CosineError as error:
                tell(error=f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class Text:
    """The tokens of a text so far, and its error, "" at its end, None before."""

    token_ids: list[int] = field(default_factory=list)
    error: str | None = None


class Reader(JsonProcess):
    """A client that has joined. It generates one text at a time."""

    def __init__(self, host: Host, *, join_patience_s: float = JOIN_PATIENCE_S, **options: Any) -> None:
        command = (sys.executable, "-m", "tests.network.reader", json.dumps(options))
        super().__init__(host, *command, **{PATIENCE_VARIABLE: f"{join_patience_s:g}"})
        assert self.hear() == {"joined": True}

    def follow(self, text: Text, *, within_s: float, tokens: int = sys.maxsize) -> Text:
        while text.error is None and len(text.token_ids) < tokens:
            line = self.hear(within_s)
            text.token_ids += line.get("token_ids", ())
            text.error = line.get("error")
        return text


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
