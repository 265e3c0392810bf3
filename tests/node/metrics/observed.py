"""Nodes of an in-memory swarm as metrics see them."""

from dataclasses import dataclass, field

from cosine_lab.simulation.swarm import Member
from cosine_node.learning.decision import Acceptance, LearningState
from cosine_node.learning.stream_store import KeptStreams
from cosine_node.learning.versions import LiveVersion
from cosine_node.metrics.node import ObservedNode
from cosine_protocol.records import Role


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


@dataclass
class FixedLearner:
    """A drafter that has learned twice, and kept the second."""

    state: LearningState = field(
        default_factory=lambda: LearningState(
            rounds=2, rollbacks=1, before=Acceptance(50, 100), after=Acceptance(60, 100)
        )
    )
    live: LiveVersion = field(default_factory=lambda: LiveVersion(2))
    kept: KeptStreams = field(default_factory=lambda: KeptStreams(streams=30))
    live_since: Acceptance = field(default_factory=lambda: Acceptance(3, 4))


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
        learner=FixedLearner() if member.role is Role.DRAFTER else None,
    )
