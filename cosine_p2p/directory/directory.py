"""The nodes of a swarm: the directory a client reads and a node writes, and its in-memory twin."""

from collections.abc import Sequence
from typing import Protocol

from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role


class Directory(Protocol):
    """Signed records of the nodes of one network, by role and target name."""

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        """Store `record` under each target name and `ALL_TARGETS`, signed by this node."""
        ...

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """Live, checked records of a role, one per peer; with `wanted`, about so many will do.

        They are those of a target name, or of every target under `ALL_TARGETS`.
        """
        ...

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        """Some that were found in an earlier run, whose records may have lapsed; None where nothing is known."""
        ...


class MemoryDirectory:
    """A directory of which all readers and writers are in one process."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], dict[str, NodeRecord]] = {}

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        for name in (*names, ALL_TARGETS):
            self._records.setdefault((record.role, name), {})[record.peer_id] = record

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        del wanted
        return list(self._records.get((role, target), {}).values())

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return None
