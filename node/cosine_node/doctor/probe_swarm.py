"""A child process that joins as a client and tells of the nodes of a target, and of the clocks of its peers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cosine_node.doctor.processes import answer_parent
from cosine_node.doctor.swarm import Neighbour, Neighbourhood
from cosine_p2p.client import Swarm
from cosine_p2p.survey import Surveyor
from cosine_p2p.text.target import Target
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body
from cosine_protocol.errors import CosineError, PeerLost, RemoteProtocolError
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import NodeRecord, Role, SignedRecord, cell_name, open_undated_record

ASK_TIMEOUT_S: Final = 5.0
"""A choice: a peer that was just dialled answers within a second; all are asked at the same time."""

LOOK_AGAIN_S: Final = (0.5, 1.5)
"""Pauses before looking again: a DHT may take a moment to show a node to a peer that has just joined."""


async def look_around(swarm: Swarm, *, target: str, network: str, peer_ids: Sequence[str]) -> Neighbourhood:
    """The nodes of a target, and the dates of the records that the peers named hold to be valid."""
    surveyor = Surveyor(swarm, target=target)
    try:
        survey = await surveyor.survey()
        for pause_s in LOOK_AGAIN_S:
            if not survey.nodes:
                await asyncio.sleep(pause_s)
                survey = await surveyor.survey()
    finally:
        await surveyor.close()
    name = Target.parse(target).name
    cells = [cell_name(network=network, role=role, target=name, prefix="") for role in Role]
    dates = await asyncio.gather(*(_dates_at(swarm, peer_id, cells) for peer_id in peer_ids))
    nodes = [
        Neighbour(
            role=sight.record.role,
            peer_id=sight.record.peer_id,
            target_digest=sight.record.target_digest.hex(),
            tokenizer_digest=sight.record.tokenizer_digest.hex(),
            reason=sight.reason,
        )
        for sight in survey.nodes
    ]
    return Neighbourhood(
        problem=survey.problem, nodes=tuple(nodes), dates=tuple(chain.from_iterable(dates)), now_s=time.time()
    )


async def _dates_at(swarm: Swarm, peer_id: str, cells: Sequence[str]) -> list[tuple[str, float, float]]:
    """Owner, issue and expiry time of the records that a peer has in some cells; none if it does not answer."""
    dates = []
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            stream = await swarm.transport.dial(peer_id, DISCOVER)
            async with Channel(stream, DISCOVER) as channel:
                for cell in cells:
                    channel.post(m.AskRecords(1, cell))
                    answer = await channel.receive()
                    for data in answer.records if isinstance(answer, m.Records) else ():
                        record = decode_body(NodeRecord, decode_body(SignedRecord, data).body)
                        # Whatever the time is: this machine's clock is what is in question.
                        open_undated_record(data, key=cell, owner=record.peer_id)
                        dates.append((record.peer_id, record.issued_at_s, record.expires_at_s))
    except (PeerLost, RemoteProtocolError, TimeoutError):
        return []
    return dates


def probe_swarm(question: dict[str, Any]) -> dict[str, Any]:
    """Join by the `initial_peers` of a question and look around, for its `network`, `target` and `peer_ids`.

    A private swarm, one with a `swarm_file`, is joined with its `identity_file`.

    Returns the fields of `Neighbourhood`.
    """
    from cosine_p2p.access import Access
    from cosine_p2p.network import joining

    network, target = question["network"], question["target"]

    access = Access(network=network)
    if question.get("swarm_file"):
        identity = question["identity_file"]
        access = replace(
            access, swarm_file=Path(question["swarm_file"]), identity_file=Path(identity) if identity else None
        )

    async def probe() -> Neighbourhood:
        try:
            swarm = await joining(question["initial_peers"], access=access)()
        except CosineError as error:
            return Neighbourhood(problem=str(error), now_s=time.time())
        try:
            return await look_around(swarm, target=target, network=network, peer_ids=question["peer_ids"])
        finally:
            await swarm.close()

    return asdict(asyncio.run(probe()))


if __name__ == "__main__":
    answer_parent(probe_swarm)
