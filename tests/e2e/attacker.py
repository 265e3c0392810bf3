"""An attacker of a real swarm, in a separate process.

Takes its task as JSON in its argument, prints "attacking" once it has begun, and ends with its stdin.
"""

import asyncio
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cosine_p2p import AsyncClient
from cosine_p2p.transport.channel import AGENT
from cosine_protocol.codec import Message, encode, encode_frame
from cosine_protocol.draft import DRAFT, Node, NodeBlock, Start
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.stream import VERSION, Hello, Ping
from cosine_protocol.verify import VERIFY, Open, Pacing, Tree
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.cosine_p2p.transport.full_nodes import plant

TARGET: Final = "zoo:target"
PIECE_BYTES: Final = 65_536
KEYS: Final = 8000
FASTEST: Final[dict[str, Any]] = {"pass_us": 1, "load_requests": 0, "capacity_requests": 1000, "lifetime_s": 60.0}


async def flood(client: AsyncClient, peer_id: str, protocol: str, message: Message) -> None:
    """Send the same message forever, over a new stream after each end."""
    frame = encode_frame(encode(message))
    hello = encode_frame(encode(Hello(VERSION, (), AGENT)))
    while True:
        with suppress(PeerLost):
            stream = await client.swarm.transport.dial(peer_id, protocol)
            await stream.write(hello)
            while True:
                await stream.write(frame * (PIECE_BYTES // len(frame) + 1))
        await asyncio.sleep(0.5)


async def flood_streams(client: AsyncClient, task: dict[str, Any]) -> None:
    request = (await client.start(task["prompt"])).request
    largest = replace(request, prompt=request.prompt[:1] * 128_000)
    nodes = NodeBlock.of([Node(index - 1, 1, 1.0) for index in range(60)])
    floods: dict[str, list[Message]] = {
        VERIFY: [
            Ping(3, 1, 1),
            Open(1, largest, (), Pacing.FREE, ()),
            Open(1, replace(request, target_digest=bytes(32)), (), Pacing.FREE, ()),
            Tree(1, bytes(16), 0, nodes, bytes(60)),
        ],
        DRAFT: [Ping(3, 1, 1), Start(1, request, ())],
    }
    for role, protocol in ((Role.VERIFIER, VERIFY), (Role.DRAFTER, DRAFT)):
        record, *_ = await client.swarm.directory.find(role, TARGET)
        for message in floods[protocol]:
            begin(flood(client, record.peer_id, protocol, message))


async def flood_dht(client: AsyncClient, task: dict[str, Any]) -> None:
    """Send bad signatures and queries of 8,000 keys, from two peers without a pause."""
    from cosine_p2p.transport.full.library import DHTID, PeerID

    strangers = await strangers_of(task)
    keys = [DHTID.generate(source=f"key {number}") for number in range(KEYS)]
    bad: dict[str, Any] = {"content": [TARGET, b"junk"], "expires_at_s": time.time() + 200}

    # Not cancelled, since hivemind's calls may mistake that for their deadline and continue.
    async def store(owner: Any, victim: str) -> None:
        while not is_over.is_set():
            await plant(owner, SimpleNamespace(peer_id=victim), subkey=owner.peer_id.to_base58(), **bad)  # type: ignore[arg-type]
            await asyncio.sleep(0)

    async def find(owner: Any, victim: str) -> None:
        while not is_over.is_set():
            await owner.protocol.call_find(PeerID.from_base58(victim), keys)
            await asyncio.sleep(0)

    for attack in (store, find):
        _, owner = await strangers.owner()
        for victim in task["peer_ids"]:
            begin(attack(owner, victim))


def issued(record: NodeRecord) -> NodeRecord:
    now_s = time.time()
    return replace(record, issued_at_s=now_s, sequence=int(now_s * 1000))


KINDS: Final = {"floods over streams": flood_streams, "floods of the DHT": flood_dht}
END_S: Final = 2.0
is_over = asyncio.Event()
leaving = AsyncExitStack()
_tasks: list["asyncio.Task[None]"] = []


def begin(work: Any) -> None:
    _tasks.append(asyncio.ensure_future(work))


async def strangers_of(task: dict[str, Any]) -> Strangers:
    folder = Path(leaving.enter_context(tempfile.TemporaryDirectory()))
    strangers = Strangers(folder, leaving)
    strangers.boot = (task["boot"],)
    return strangers


async def main(task: dict[str, Any]) -> None:
    async with (
        AsyncClient([task["boot"]], memory=False, target=task["target"], dtype=task["dtype"], audit=0) as client,
        leaving,
    ):
        await KINDS[task["do"]](client, task)
        sys.stdout.write("attacking\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        is_over.set()
        if _tasks:
            await asyncio.wait(_tasks, timeout=END_S)
        failed = [each.exception() for each in _tasks if each.done() and not each.cancelled()]
        for each in _tasks:
            each.cancel()
        await asyncio.gather(*_tasks, return_exceptions=True)
        assert not any(failed), failed


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
