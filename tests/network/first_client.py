"""A light client that asks twice, and how long it waits: `python -m tests.network.first_client TARGET ADDRESS`.

Times are from its start, its libraries loaded: until it has joined, and until the first token. The second request
tells how long a later one waits for its first token, and what each token takes after it. A client starts for each
line of stdin, which names the folder of what it has kept; its times are a line of JSON on stdout.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cosine_p2p.access import Access
from cosine_p2p.client import AsyncClient
from cosine_p2p.directory.known_peers import KnownPeers
from cosine_p2p.directory.known_records import KnownRecords
from cosine_p2p.network import NetworkSwarm, joining

PROMPT: Final = "Once upon a time"
TOKENS: Final = 12


async def ask_twice(join: Callable[[], Awaitable[NetworkSwarm]], **options: Any) -> dict[str, float]:
    """The seconds by name."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    async with AsyncClient(join=join, max_new_tokens=TOKENS, strategy="plain", audit=0.0, **options) as client:
        found = {"joined": clock() - began_s}
        came_s = [clock() async for _ in client.stream(PROMPT)]
        found["first token"] = came_s[0] - began_s
        asked_s = clock()
        came_s = [clock() async for chunk in client.stream(PROMPT, seed=1) for _ in chunk.token_ids]
        found["a later first token"] = came_s[0] - asked_s
        found["a token"] = (came_s[-1] - came_s[0]) / (len(came_s) - 1)
    return found


def kept(target: str) -> dict[str, Any]:
    """What a client goes on from that was there before."""
    records = KnownRecords("measured", target, clock=time.time)
    return {"known_peers": KnownPeers("measured"), "known_records": records}


@contextmanager
def home(folder: Path) -> Iterator[None]:
    """What is kept between runs lies in a folder."""
    own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")}
    with patch.dict(os.environ, own):
        yield


def main() -> None:
    target, address = sys.argv[1:]
    # What the first request loads at the latest is no matter of the network.
    for name in ("cosine_p2p.transport.light.light", "cosine_p2p.text.tokenizer", "tokenizers"):
        importlib.import_module(name)
    for line in sys.stdin:
        with home(Path(line.strip())):
            join = joining([address], access=Access(), transport="light", **kept(target))
            took_s = asyncio.run(ask_twice(join, target=target))
        sys.stdout.write(json.dumps(took_s) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
