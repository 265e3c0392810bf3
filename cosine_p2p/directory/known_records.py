"""Signed records of the nodes that a client found last, kept between runs, so that the next one begins with them.

A record lapses within minutes, but its node is most often still there a day later: it is dialled at once, while
the swarm is looked up. One out of date costs a dial.
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosine_p2p.directory.postings import PostingChecker
from cosine_p2p.storage.state_file import StateFile
from cosine_protocol import limits
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.records import NodeRecord, Role

logger = logging.getLogger(__name__)

VERSION: Final = 1
"""Of the file; one of another version holds nobody."""
MAX_RECORDS: Final[Mapping[Role, int]] = {Role.VERIFIER: 4, Role.DRAFTER: 8}
"""Bounds the file, and what is dialled at once: as many drafters as are asked, and more than one verifier."""
MAX_TARGETS: Final = 16
"""Bounds the file: the targets used last, each of one network."""
MAX_FILE_BYTES: Final = 2 << 20
"""Above what these bounds allow with `MAX_RECORD_BYTES` a record: a larger file is not ours."""
KEEP_S: Final = 24 * 3600.0
"""Who asks daily begins with the nodes of the day before. One that left is dialled in vain for so long, beside the
look-up, so that nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRecord:
    """A record as it lies in a cell, signed by its owner."""

    cell: str
    owner: str
    data: bytes


class KnownRecords:
    """The nodes of one target that are remembered in a file. One that is missing, broken or too large holds none.

    `swarm` names the swarm, as that of `KnownPeers`; `clock` gives Unix seconds.
    """

    def __init__(self, swarm: str, target: str, *, clock: Callable[[], float], file: Path | None = None) -> None:
        self.target = target
        self._place = f"{swarm} {target}"
        self._clock = clock
        self._file = StateFile("records.json", max_bytes=MAX_FILE_BYTES, file=file)
        self._found: dict[Role, tuple[float, Sequence[SealedRecord]]] = {}

    def read(self, checker: PostingChecker) -> dict[Role, list[NodeRecord]]:
        """What was found last of each role within `KEEP_S`; a record must have been valid then."""
        known: dict[Role, list[NodeRecord]] = {}
        for role, most in MAX_RECORDS.items():
            match self._targets().get(self._place):
                case {role.value: {"found_at_s": float(at_s), "records": list(entries)}} if (
                    0.0 <= self._clock() - at_s < KEEP_S
                ):
                    opened = (self._opened(entry, checker, role, at_s) for entry in entries[:most])
                    known[role] = [record for record in opened if record is not None]
        return known

    def note(self, role: Role, target: str, found: Sequence[SealedRecord]) -> None:
        """Remember what a look-up has found, in place of an older one; nothing of another target."""
        if target == self.target and role in MAX_RECORDS:
            self._found[role] = self._clock(), found

    def write(self, met: Collection[str]) -> None:
        """Keep what was noted for the next run, those that this one `met` before others."""
        if not self._found:
            return
        targets = self._targets()
        kept = dict(targets.pop(self._place, {}))
        for role, (at_s, found) in self._found.items():
            best = sorted(found, key=lambda sealed: sealed.owner not in met)[: MAX_RECORDS[role]]
            records = [[each.cell, each.owner, b64encode(each.data).decode("ascii")] for each in best]
            kept[role.value] = {"found_at_s": at_s, "records": records}
        targets = {self._place: kept, **targets}
        self._file.write({"version": VERSION, "targets": dict(list(targets.items())[:MAX_TARGETS])})

    def _targets(self) -> dict[str, dict[str, Any]]:
        match self._file.read():
            case {"version": int(version), "targets": dict(targets)} if version == VERSION:
                return {str(place): kept for place, kept in targets.items() if isinstance(kept, dict)}
        return {}

    def _opened(self, entry: Any, checker: PostingChecker, role: Role, at_s: float) -> NodeRecord | None:
        try:
            match entry:
                case [str(cell), str(owner), str(text)] if len(text) <= 2 * limits.MAX_RECORD_BYTES:
                    # Also by the clock of then: an old record says nothing of clocks now.
                    record = checker.open(b64decode(text, validate=True), cell=cell, owner=owner, now_s=at_s)
                    return record if record.role == role else None
        except (RemoteProtocolError, ValueError) as error:
            logger.debug("a record in %s is left out: %s", self._file.path, error)
        return None
