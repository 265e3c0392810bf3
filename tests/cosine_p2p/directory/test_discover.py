"""A client without a DHT node: the results of honest, dead, slow and lying nodes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_node.serving.discover_service import DiscoverService
from cosine_p2p.dht.postings import RecordOpener
from cosine_p2p.directory.discover import DiscoverCells
from cosine_protocol.discover import DISCOVER
from cosine_protocol.fields import DIGEST_BYTES, encode_body
from cosine_protocol.identity import Signed
from cosine_protocol.records import NodeRecord, Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import as_test, in_virtual_time

NOW_S = 1_000_000.0
CELL = cell_name(network=NETWORK, role=Role.DRAFTER, target=TARGET, prefix="")
Reader = Callable[[str], Awaitable[Sequence[bytes]]]


def sealed(number: int, *, cell: str = CELL, **changes: Any) -> bytes:
    identity = identity_of(number)
    return seal_record(record_of(identity, now_s=NOW_S, **changes), identity, key=cell)


def forged(number: int, **changes: Any) -> bytes:
    """A record of another peer, signed by a liar."""
    body = encode_body(record_of(identity_of(number), now_s=NOW_S, **changes))
    liar = identity_of(99)
    return encode_body(Signed(body, liar.sign(kind="record", digest=b"\0" * DIGEST_BYTES, body=body)))


def telling(*records: bytes) -> Reader:
    async def read(cell: str) -> Sequence[bytes]:
        return records if cell == CELL else ()

    return read


async def never(cell: str) -> Sequence[bytes]:
    await asyncio.sleep(3600)
    return ()


class World:
    def __init__(self) -> None:
        self.network = MemoryNetwork(one_way_s=0.01)
        self.nodes: list[MemoryTransport] = []
        self.noted: set[str] = set()
        self.client = self.network.join(identity_of(1000).peer_id)

    async def node(self, peer_id: str, read: Reader) -> None:
        node = self.network.join(peer_id)
        await node.serve(DISCOVER, DiscoverService(read, clock=asyncio.get_running_loop().time).handle)
        self.nodes.append(node)

    def cells(self, *initial_peers: str) -> DiscoverCells:
        def note(record: NodeRecord) -> None:
            self.noted.add(record.peer_id)

        opener = RecordOpener()
        return DiscoverCells(self.client, initial_peers, opener=opener, note_record=note, clock=lambda: NOW_S)

    async def close(self) -> None:
        for each in (self.client, *self.nodes):
            await each.close()


@in_virtual_time
async def play(scene: Callable[[World], Awaitable[None]]) -> None:
    world = World()
    await scene(world)
    await world.close()


in_world = as_test(play, given=1)


async def read(cells: DiscoverCells) -> dict[str, bytes]:
    found = await cells.read([CELL])
    await cells.close()
    return dict(found[CELL])


@in_world
async def test_answers_are_put_together_with_the_newest_of_each_owner(world: World) -> None:
    old, new = sealed(1, sequence=1), sealed(1, sequence=2)
    await world.node("a", telling(old, sealed(2)))
    await world.node("b", telling(new))
    await world.node("c", telling())
    found = await read(world.cells("a", "b", "c"))
    assert found == {identity_of(1).peer_id: new, identity_of(2).peer_id: sealed(2)}


@in_world
async def test_a_forged_later_record_does_not_hide_the_true_one(world: World) -> None:
    await world.node("liar", telling(forged(1, sequence=1 << 50), b"rubbish", sealed(3, cell="another/cell")))
    await world.node("honest", telling(sealed(1)))
    assert await read(world.cells("liar", "honest")) == {identity_of(1).peer_id: sealed(1)}
    assert world.noted == {identity_of(1).peer_id}


@pytest.mark.parametrize("bad", ["gone", "silent"])
@in_world
async def test_a_node_that_is_gone_or_silent_costs_only_its_answer(world: World, bad: str) -> None:
    await world.node("honest", telling(sealed(1)))
    if bad == "silent":
        await world.node("silent", never)
    began_s = asyncio.get_running_loop().time()
    assert set(await read(world.cells(bad, "honest"))) == {identity_of(1).peer_id}
    # The owner of the record, who does not serve, is asked as well.
    assert asyncio.get_running_loop().time() - began_s < 2.5
