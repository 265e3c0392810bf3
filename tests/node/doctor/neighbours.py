"""An in-memory swarm as the doctor's probe sees it, on a clock that may be off."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.doctor.swarm import Neighbourhood, look_around
from cosine_node.serving.discover_service import DiscoverService
from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.plain_swarm import PlainSwarm, account
from tests.cosine_p2p.samples import identity_of, record_of

TARGET: Final = "zoo:target"
NETWORK: Final = "test"
NOW_S: Final = 1_800_000_000.0


def keeping(records: dict[str, bytes]) -> StreamHandler:
    """A node that keeps these records by cell."""

    async def read(cell: str) -> Sequence[bytes]:
        return [records[cell]] if cell in records else []

    return DiscoverService(read).handle


def looked_around(*, roles: Sequence[Role], clock_off_s: float = 0.0, silent: bool = False) -> Neighbourhood:
    """The view that a probe has of one node for each role, whose records an honest peer keeps."""

    async def run() -> Neighbourhood:
        swarm = PlainSwarm()
        records = {}
        for number, role in enumerate(roles, start=1):
            record = record_of(identity_of(number), now_s=NOW_S, role=role, target=TARGET)
            record = replace(record, target_digest=record.facts.digest())
            cell = cell_name(network=NETWORK, role=role, target=TARGET, prefix="")
            records[cell] = seal_record(record, identity_of(number), key=cell)
            await swarm.announce(number, None if silent else account(), role=role, target=TARGET)
        await swarm.network.join("keeper").serve(DISCOVER, keeping(records))
        seen = await look_around(swarm, target=TARGET, network=NETWORK, peer_ids=["keeper", "nobody"])
        await swarm.close()
        return replace(seen, now_s=NOW_S + clock_off_s)

    return run_virtual(run())
