"""Look-ups of the last seconds are reused, older ones while they are renewed, until a link is lost."""

import asyncio

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_p2p.session.peer_search import KEEP_S, REUSE_S, RecentFinds
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.link import Links
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.verify import VERIFY
from tests.cosine_p2p.samples import TARGET, identity_of, record_of
from tests.scenes import in_virtual_time


class CountedDirectory(MemoryDirectory):
    asked = 0

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        self.asked += 1
        return await super().find(role, target, wanted=wanted)


async def with_drafters(count: int) -> CountedDirectory:
    directory = CountedDirectory()
    for number in range(count):
        await directory.announce(record_of(identity_of(number), now_s=0.0), (TARGET,))
    return directory


def finds_in(directory: CountedDirectory, network: MemoryNetwork | None = None) -> tuple[RecentFinds, Links]:
    links = Links((network or MemoryNetwork()).join("client"))
    return RecentFinds(directory, links, asyncio.get_running_loop().time), links


@in_virtual_time
async def test_a_recent_look_up_is_reused_and_an_older_one_serves_one_request_while_it_is_renewed() -> None:
    directory = await with_drafters(1)
    finds, _ = finds_in(directory)
    first = await finds.find(Role.DRAFTER, TARGET)
    await directory.announce(record_of(identity_of(1), now_s=0.0), (TARGET,))
    for pause_s, asked, found in ((0.9 * REUSE_S, 1, 1), (REUSE_S, 2, 1), (0.0, 2, 2), (KEEP_S, 3, 2)):
        await asyncio.sleep(pause_s)
        records = await finds.find(Role.DRAFTER, TARGET)
        await asyncio.sleep(0)
        assert (directory.asked, len(records), records[:1]) == (asked, found, first)
    await finds.close()


@in_virtual_time
async def test_a_lost_link_ends_the_reuse() -> None:
    async def idle(stream: Stream) -> None:
        await stream.read()

    network = MemoryNetwork()
    server = network.join("server")
    await server.serve(VERIFY, idle)
    directory = await with_drafters(1)
    finds, links = finds_in(directory, network)
    await links.get("server", VERIFY)
    await finds.find(Role.DRAFTER, TARGET)
    server.vanish()
    await asyncio.sleep(0.5)
    for asked in (2, 2):
        await finds.find(Role.DRAFTER, TARGET)
        assert directory.asked == asked
    await links.close()


class RememberingDirectory(CountedDirectory):
    def __init__(self, *recalled: NodeRecord) -> None:
        super().__init__()
        self._recalled = list(recalled)

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return [record for record in self._recalled if record.role == role]


@in_virtual_time
async def test_what_an_earlier_run_found_serves_at_once_while_it_is_looked_up() -> None:
    old, new = (record_of(identity_of(number), now_s=0.0, role=Role.VERIFIER) for number in (1, 2))
    directory = RememberingDirectory(old)
    await directory.announce(new, (TARGET,))
    finds, _ = finds_in(directory)
    assert await finds.find_some(Role.VERIFIER, TARGET) == [old]
    assert (finds.is_recalled(Role.VERIFIER, TARGET), directory.asked) == (True, 0)
    await finds.look_again(Role.VERIFIER, TARGET)
    assert (finds.is_recalled(Role.VERIFIER, TARGET), directory.asked) == (False, 1)
    assert await finds.find(Role.VERIFIER, TARGET) == [new]
    assert directory.asked == 1
