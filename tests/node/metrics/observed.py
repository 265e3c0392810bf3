"""Nodes of an in-memory swarm as metrics see them."""

from dataclasses import dataclass

from cosine_node.metrics.node import ObservedNode
from cosine_node.simulation.swarm import Member


@dataclass
class FixedNetwork:
    """A transport that says so much of itself."""

    connected_peers: int = 4
    open_streams: int = 2
    restarts: int = 1


@dataclass
class FixedDirectory:
    """A directory that says so much of itself."""

    holders: int = 15


def observed(member: Member, *, model_name: str = "m") -> ObservedNode:
    return ObservedNode(
        role=member.role,
        model_name=model_name,
        peer_id=member.identity.peer_id,
        target="zoo:target",
        numerics=member.engine.numerics,
        version="v",
        max_requests=16,
        service=member.service,
        engine=member.engine,
        network=FixedNetwork(),
        directory=FixedDirectory(),
    )
