"""A client as a process of a host: it is told over its pipes which texts to ask for.

The argument has the options of its `AsyncClient` as JSON. Each line of stdin has the options of one text and its
`prompt`; with `is_newcomer` a client of its own joins for it. Each line of stdout tells so many new `token_ids`, or
how the text ended: with an `error`, "" where it is whole, and with what was measured. A line with `way_to`, a peer,
and its `role` asks for the way to it instead.
"""

import asyncio
import json
import logging
import sys
import time
from contextlib import aclosing
from typing import Any, Final

from cosine_p2p import AsyncClient
from cosine_protocol.errors import CosineError
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import Role

RTT_S: Final = 2.5
"""After so long a link has measured its round trip three times."""


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def read(client: AsyncClient, prompt: str, options: dict[str, Any], began_s: float) -> dict[str, Any]:
    """Tell a text as it comes, and return what was measured of it."""
    run = await client.start(prompt, **options)
    first_s, last_s, silence_s = 0.0, time.monotonic(), 0.0
    async with aclosing(run.chunks()) as chunks:
        async for chunk in chunks:
            tell(token_ids=chunk.token_ids)
            now_s = time.monotonic()
            first_s, silence_s, last_s = first_s or now_s - began_s, max(silence_s, now_s - last_s), now_s
    return {"first_s": first_s, "silence_s": silence_s, "tried": run.progress().tried}


async def way_to(client: AsyncClient, peer_id: str, role: str) -> dict[str, Any]:
    """The address at the other end of the connection to a peer, and the round trip over it."""
    place = client._joined()
    await place.finds.find_anew(Role(role), client.target)
    link = await place.links.get(peer_id, STATUS)
    await asyncio.sleep(RTT_S)
    return {"way": await place.swarm.transport.address_of(peer_id), "rtt_s": link.rtt_s}


async def answer(client: AsyncClient, peers: list[str], given: dict[str, Any], order: dict[str, Any]) -> None:
    began_s = time.monotonic()
    try:
        match order:
            case {"way_to": peer_id, "role": role}:
                found = await way_to(client, peer_id, role)
            case {"prompt": prompt, "is_newcomer": True, **options}:
                async with AsyncClient(peers, memory=False, **given) as newcomer:
                    found = await read(newcomer, prompt, options, began_s)
            case {"prompt": prompt, **options}:
                found = await read(client, prompt, options, began_s)
            case _:
                raise AssertionError(order)
        tell(error="", **found)
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
