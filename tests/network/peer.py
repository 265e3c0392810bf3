"""A full transport as a process of a host (this file as a command), and how a test asks it (`PeerProcess`).

The command reads one JSON order a line from stdin and writes one JSON answer a line to stdout. Its argument has the
fields of its `TransportConfig`.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.errors import CosineError
from tests.network.laboratory import Host

ECHO: Final = "/cosine/echo/test"
ROUND_TRIPS: Final = 5
COMMAND: Final = (sys.executable, "-m", "tests.network.peer")


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


async def dialled(
    transport: HivemindTransport, peer_id: str, maddrs: list[str], timeout_s: float
) -> dict[str, Any]:
    """Open a stream, over which bytes come back: the peer's address."""
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


async def answer(transport: HivemindTransport, order: dict[str, Any]) -> dict[str, Any]:
    match order:
        case {"do": "dial", "peer": peer_id, "maddrs": maddrs, **more}:
            return await dialled(transport, peer_id, maddrs, more.get("timeout_s", 10.0))
        case _:
            reach = transport.reach
            return {"kind": reach.kind.value, "said": str(reach), "maddrs": reach.addresses}


def tell(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


async def main() -> None:
    given = json.loads(sys.argv[1])
    file = Path(os.environ["HOME"]) / "identity"
    load_identity(file)
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    transport = await HivemindTransport.start(TransportConfig(identity_file=file, **given | lists))
    await transport.serve(ECHO, echo)
    hello = {"peer": transport.peer_id, "maddrs": await transport.visible_maddrs()}
    tell(hello)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            found = await answer(transport, json.loads(line))
        except (CosineError, TimeoutError) as error:
            found = {"error": str(error) or type(error).__name__}
        tell(found)
    await transport.close()


@dataclass(slots=True)
class PeerProcess:
    """Started by `start`; `peer_id` and `maddrs` are known once it is ready."""

    host: Host
    process: Any
    peer_id: str = ""
    maddrs: tuple[str, ...] = ()

    @classmethod
    def start(cls, host: Host, **config: Any) -> "PeerProcess":
        """A transport with that config, once it is ready."""
        peer = cls(host, host.start(*COMMAND, json.dumps(config), log="peer.log"))
        line = peer.process.stdout.readline()
        assert line, (host.home / "peer.log").read_text()
        hello = json.loads(line)
        peer.peer_id, peer.maddrs = hello["peer"], tuple(hello["maddrs"])
        return peer

    @property
    def maddr(self) -> str:
        """Where others dial it, over TCP."""
        return next(maddr for maddr in self.maddrs if f"/{self.host.addresses[0]}/tcp/" in maddr)

    def ask(self, **order: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.host.home / "peer.log").read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def reach(self) -> dict[str, Any]:
        return self.ask(do="reach")

    def dial(self, other: "PeerProcess", **more: Any) -> dict[str, Any]:
        """Open a stream by the addresses that the other announces."""
        return self.ask(do="dial", peer=other.peer_id, maddrs=other.reach()["maddrs"], **more)

    def end(self) -> None:
        """As a machine that is switched off, except that the system hangs up."""
        self.process.kill()
        self.process.wait()


def wait_until(is_so: Callable[[], bool], *, within_s: float) -> None:
    """Wait until it is so. Fails after `within_s`."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < within_s, f"it was not so within {within_s:g} s"
        time.sleep(0.1)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
