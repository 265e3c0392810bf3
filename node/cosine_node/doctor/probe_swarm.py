"""A child process that joins as a client, looks around, and tells what it saw."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from cosine_node.doctor.processes import answer_parent
from cosine_p2p.channel import Channel
from cosine_p2p.client import Swarm
from cosine_p2p.survey import NodeSight, Surveyor
from cosine_p2p.target import Target
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body
from cosine_protocol.errors import CosineError, PeerLost, RemoteProtocolError
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import NodeRecord, Role, SignedRecord, cell_name, open_record

ASK_TIMEOUT_S: Final = 5.0
LOOK_AGAIN_S: Final = (0.5, 1.5)


async def look_around(swarm: Swarm, *, target: str, network: str, peer_ids: Sequence[str]) -> dict[str, Any]:
    """The nodes of a target, and the dates of the records that the peers named hold to be valid."""
    surveyor = Surveyor(swarm, target=target)
    try:
        survey = await surveyor.survey()
        for pause_s in LOOK_AGAIN_S:
            if survey.nodes:
                break
            await asyncio.sleep(pause_s)
            survey = await surveyor.survey()
    finally:
        await surveyor.close()
    name = Target.parse(target).name
    cells = [cell_name(network=network, role=role, target=name, prefix="") for role in Role]
    dates = await asyncio.gather(*(_dates_at(swarm, peer_id, cells) for peer_id in peer_ids))
    return {
        "problem": survey.problem,
        "nodes": [_neighbour(sight) for sight in survey.nodes],
        "dates": [date for some in dates for date in some],
        "now_s": time.time(),
    }


def _neighbour(sight: NodeSight) -> dict[str, str]:
    record = sight.record
    return {
        "role": record.role,
        "peer_id": record.peer_id,
        "target_digest": record.target_digest.hex(),
        "tokenizer_digest": record.tokenizer_digest.hex(),
        "reason": sight.reason,
    }


async def _dates_at(swarm: Swarm, peer_id: str, cells: Sequence[str]) -> list[tuple[float, float]]:
    """When the records a peer has in some cells were issued and expire; none if it does not say."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            stream = await swarm.transport.dial(peer_id, DISCOVER)
            async with Channel(stream, DISCOVER) as channel:
                return [date for cell in cells for date in await _dates_in(channel, cell)]
    except (PeerLost, RemoteProtocolError, TimeoutError):
        return []


async def _dates_in(channel: Channel, cell: str) -> list[tuple[float, float]]:
    channel.post(m.AskRecords(1, cell))
    answer = await channel.receive()
    if not isinstance(answer, m.Records):
        return []
    return [_date_of(data, cell) for data in answer.records]


def _date_of(data: bytes, cell: str) -> tuple[float, float]:
    """Raises `RemoteProtocolError` for what its owner did not sign."""
    record = decode_body(NodeRecord, decode_body(SignedRecord, data).body)
    # Judged by its own clock: ours is what is in question.
    open_record(data, key=cell, owner=record.peer_id, now_s=record.issued_at_s)
    return record.issued_at_s, record.expires_at_s


def look(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has `initial_peers`, their `peer_ids`, `network` and `target`."""
    return asyncio.run(_look(question))


async def _look(question: dict[str, Any]) -> dict[str, Any]:
    from cosine_p2p.network import joining

    network, target = question["network"], question["target"]
    try:
        swarm = await joining(question["initial_peers"], network=network)()
    except CosineError as error:
        return {"problem": str(error), "nodes": [], "dates": [], "now_s": time.time()}
    try:
        return await look_around(swarm, target=target, network=network, peer_ids=question["peer_ids"])
    finally:
        await swarm.close()


if __name__ == "__main__":
    answer_parent(look)
