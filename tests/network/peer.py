"""A full transport as a process of a host, asked over its pipes: the network of a node without a model.

Reads one JSON order a line from stdin and writes one JSON answer a line to stdout. The first argument holds the
fields of its `TransportConfig`.
"""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.errors import CosineError

ECHO: Final = "/cosine/echo/test"


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


async def round_trips(transport: HivemindTransport, peer_id: str, count: int, timeout_s: float) -> dict[str, Any]:
    """The time that a stream took to open, the median of round trips over it, and whether the peer is relayed."""
    began_s = time.monotonic()
    stream = await transport.dial(peer_id, ECHO)
    took_s = []
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(count):
                asked_s = time.monotonic()
                await stream.write(b"x")
                if not await stream.read():
                    return {"error": "the stream ended"}
                took_s.append(time.monotonic() - asked_s)
    finally:
        stream.close()
    opened_s = time.monotonic() - began_s - sum(took_s[1:])
    address = await transport.address_of(peer_id)
    return {
        "opened_s": opened_s,
        "rtt_s": median(took_s),
        "is_relayed": "/p2p-circuit" in address,
        "address": address,
    }


async def answer(transport: HivemindTransport, order: dict[str, Any]) -> dict[str, Any]:
    match order:
        case {"do": "dial", "peer": peer_id, **more}:
            if more.get("maddrs"):
                transport.note_addresses(peer_id, more["maddrs"])
            return await round_trips(transport, peer_id, more.get("count", 5), more.get("timeout_s", 10.0))
        case {"do": "reach"}:
            reach = transport.reach
            return {"kind": reach.kind.value, "said": str(reach), "maddrs": reach.addresses}
        case {"do": "maddrs"}:
            return {"maddrs": await transport.visible_maddrs()}
        case _:
            return {"error": "unknown"}


async def main() -> None:
    given = json.loads(sys.argv[1])
    file = Path(os.environ["HOME"]) / "identity"
    load_identity(file)
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    transport = await HivemindTransport.start(TransportConfig(identity_file=file, **given | lists))
    await transport.serve(ECHO, echo)
    hello = {"peer": transport.peer_id, "maddrs": await transport.visible_maddrs()}
    sys.stdout.write(json.dumps(hello) + "\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            found = await answer(transport, json.loads(line))
        except (CosineError, TimeoutError) as error:
            found = {"error": str(error) or type(error).__name__}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    await transport.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
