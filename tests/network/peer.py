"""A full transport as a process of a host: this file as a command, and `PeerProcess` for tests.

The argument of the command has the fields of its `TransportConfig` as JSON.
"""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.errors import CosineError
from tests.network.laboratory import Host
from tests.network.process import JsonProcess, orders, tell

ECHO: Final = "/cosine/echo/test"
ROUND_TRIPS: Final = 5


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


async def dialled(
    transport: HivemindTransport, peer_id: str, maddrs: list[str], timeout_s: float
) -> dict[str, Any]:
    """Open a stream, exchange bytes over it, and return the peer's address."""
    transport.note_addresses(peer_id, maddrs)
    stream = await transport.dial(peer_id, ECHO)
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(ROUND_TRIPS):
                await stream.write(b"x")
                if not await stream.read():
                    return {"error": "the stream ended"}
    finally:
        stream.close()
    address = await transport.address_of(peer_id)
    return {"is_relayed": "/p2p-circuit" in address, "address": address}


async def main() -> None:
    given = json.loads(sys.argv[1])
    file = Path(os.environ["HOME"]) / "identity"
    load_identity(file)
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    transport = await HivemindTransport.start(TransportConfig(identity_file=file, **given | lists))
    await transport.serve(ECHO, echo)
    tell(peer=transport.peer_id, maddrs=await transport.visible_maddrs())
    async for order in orders():
        try:
            if order:
                tell(**await dialled(transport, **order))
            else:
                reach = transport.reach
                tell(kind=reach.kind.value, said=str(reach), maddrs=reach.addresses)
        except (CosineError, TimeoutError) as error:
            tell(error=str(error) or type(error).__name__)
    await transport.close()


class PeerProcess(JsonProcess):
    def __init__(self, host: Host, **config: Any) -> None:
        super().__init__(host, sys.executable, "-m", "tests.network.peer", json.dumps(config))
        hello = self.hear()
        self.peer_id: str = hello["peer"]
        # The TCP address of a public peer.
        self.maddr = next((maddr for maddr in hello["maddrs"] if f"/{host.addresses[0]}/tcp/" in maddr), "")

    def reach(self) -> dict[str, Any]:
        self.say()
        return self.hear()

    def dial(self, other: "PeerProcess", *, timeout_s: float = 10.0) -> dict[str, Any]:
        self.say(peer_id=other.peer_id, maddrs=other.reach()["maddrs"], timeout_s=timeout_s)
        return self.hear()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
