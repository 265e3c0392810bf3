"""The nodes of a swarm: the directory that a client reads and a node writes."""

from collections.abc import Sequence
from typing import Protocol

from cosine_protocol.records import NodeRecord, Role


class Directory(Protocol):
    """Signed records of the nodes of one network, by role and target name."""

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None: ...

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """Live, checked records of a role, one for each peer, of a target or `ALL_TARGETS`; about `wanted`."""
        ...

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        """Records of an earlier run, which may have lapsed; None if nothing is known."""
        ...
