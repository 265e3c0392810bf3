"""What a client's look-ups found, used again for a few seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cosine_p2p.directory import Directory
from cosine_p2p.link import Links
from cosine_protocol.records import NodeRecord, Role

REUSE_S: Final = 2.0
"""A choice: short requests gain, for a look-up and the check of what it found take some 20 ms on two cores, as long
as two passes of a small target (measured); those that last longer see the present load of each node."""


@dataclass(frozen=True, slots=True)
class _Find:
    records: list[NodeRecord]
    found_at_s: float
    lost_links: int


class RecentFinds:
    """Looks nodes up in a directory, unless that was done `reuse_s` ago and no link was lost since.

    `clock` gives seconds. What found nobody is not kept.
    """

    def __init__(
        self, directory: Directory, links: Links, clock: Callable[[], float], *, reuse_s: float = REUSE_S
    ) -> None:
        self._directory = directory
        self._links = links
        self._clock = clock
        self._reuse_s = reuse_s
        self._finds: dict[tuple[Role, str, int | None], _Find] = {}

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """Live records as of the last few seconds, as `Directory.find` does."""
        key = role, target, wanted
        known = self._finds.get(key)
        if (
            known is not None
            and self._clock() - known.found_at_s < self._reuse_s
            and known.lost_links == self._links.lost_links
        ):
            return known.records
        records = await self._directory.find(role, target, wanted=wanted)
        self._finds.pop(key, None)
        if records:
            self._finds[key] = _Find(records, self._clock(), self._links.lost_links)
        return records
