"""A client's memory of peers between runs, in one file; nodes of the last day are dialled at once."""

import logging
import random
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Final

from cosine_p2p.dht.cells import SealedRecord
from cosine_p2p.dht.postings import PostingChecker
from cosine_p2p.directory.distances import Distances
from cosine_p2p.directory.known_peers import MAX_PEERS, KnownPeer
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_p2p.trust.standing import Standings
from cosine_protocol.errors import MalformedMessage, RemoteProtocolError
from cosine_protocol.records import ALL_TARGETS, MAX_RECORD_BYTES, NodeRecord, Role

logger = logging.getLogger(__name__)

FILE_NAME: Final = "client.json"
VERSION: Final = 2  # Of the file; one of another version is ignored.
MAX_SWARMS: Final = 8  # Bounds the file; the swarms used last are kept.
MAX_TARGETS: Final = 4  # Bounds the file; the targets of a swarm used last are kept.
MAX_RECORDS: Final[Mapping[Role, int]] = {Role.VERIFIER: 4, Role.DRAFTER: 8}  # Bounds the file, and early dials.
MAX_FILE_BYTES: Final = 8 << 20  # Above these bounds with `MAX_RECORD_BYTES` per record.
KEEP_S: Final = 24 * 3600.0  # Maximum time for which a node that has left is still dialled.


class ClientMemory:
    """A client's knowledge of peers, stored in `file`; a broken, too large or older file counts as empty."""

    def __init__(
        self,
        file: StateFile | None = None,
        *,
        strategies: Mapping[str, StrategyKind] = STRATEGIES,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.failures = PeerFailures()
        self.speeds = PeerSpeeds()
        self.standings = Standings()
        self.distances = Distances(random.Random(0).random)
        self.trials = {kind.name: SpeedTrials(kind.drafter_counts) for kind in strategies.values()}
        # What is stored of peers, with the types of the values.
        self._kept: dict[str, tuple[Remembered[str, Any], type]] = {
            "failures": (self.failures.counts, int),
            "commits_s": (self.speeds.commits_s, float),
            "prefills_s": (self.speeds.prefills_s, float),
            "right": (self.standings.right, int),
            "wrong": (self.standings.wrong, bool),
            "distances_s": (self.distances.told, float),
        }
        self._file = file
        self.wall_s = wall_s

    @classmethod
    def of(
        cls,
        given: "ClientMemory | str | PathLike[str] | bool",
        *,
        strategies: Mapping[str, StrategyKind] = STRATEGIES,
    ) -> "ClientMemory":
        """Return a memory for a path or a memory; `True` is the default file, `False` none."""
        if isinstance(given, ClientMemory):
            return given
        if given is False:
            return cls(strategies=strategies)
        path = None if given is True else Path(given)
        return cls(StateFile(FILE_NAME, max_bytes=MAX_FILE_BYTES, file=path), strategies=strategies)

    def restore(self, *, now_s: float) -> None:
        """Read the file. `now_s` is of the clock of this memory's times."""
        kept = self._read()
        if "kept_at_s" not in kept:
            return
        try:
            away_s = max(0.0, self.wall_s() - float(kept["kept_at_s"]))
            for part, (memory, kind) in self._kept.items():
                memory.restore(kept[part], kind, now_s=now_s, away_s=away_s)
            self.distances.place.restore(kept["place"])
            for name, known in self.trials.items():
                known.restore(kept["trials"].get(name, ()))
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, MalformedMessage) as error:
            logger.warning("what was kept of peers cannot be used: %r", error)

    def write(self, *, now_s: float) -> None:
        """Write the file for the next process."""
        self._update(
            kept_at_s=self.wall_s(),
            **{part: memory.aged(now_s) for part, (memory, _) in self._kept.items()},
            place=self.distances.place.state(),
            trials={name: known.state() for name, known in self.trials.items()},
        )

    def of_swarm(self, swarm: str, *, target: str = ALL_TARGETS) -> "SwarmMemory":
        """Return the memory of a swarm, named by its network and initial peers, for `target`."""
        return SwarmMemory(self, swarm, target)

    def read_swarm(self, swarm: str) -> dict[str, Any]:
        return _object(_object(self._read().get("swarms")).get(swarm))

    def write_swarm(self, swarm: str, kept: Mapping[str, Any]) -> None:
        """Store a swarm's data, and keep the latest `MAX_SWARMS`."""
        others = _object(self._read().get("swarms"))
        others.pop(swarm, None)
        self._update(swarms=_first({swarm: kept, **others}, MAX_SWARMS))

    def _read(self) -> dict[str, Any]:
        value = {} if self._file is None else self._file.read()
        return value if value.get("version") == VERSION else {}

    def _update(self, **parts: Any) -> None:
        if self._file is not None:
            self._file.write({**self._read(), "version": VERSION, **parts})


class SwarmMemory:
    """The nodes of a swarm that a client used last."""

    def __init__(self, memory: ClientMemory, swarm: str, target: str) -> None:
        self.target = target
        self._memory = memory
        self._swarm = swarm
        self._found: dict[Role, tuple[float, Sequence[SealedRecord]]] = {}

    def peers(self) -> tuple[KnownPeer, ...]:
        """Return at most `MAX_PEERS` peers, those that answered last first."""
        values = self._memory.read_swarm(self._swarm).get("peers")
        peers = []
        for value in values if isinstance(values, list) else []:
            try:
                peers.append(KnownPeer.read(value))
            except ValueError:
                logger.debug("an invalid remembered peer is ignored")
        return _best(peers)

    def records(self, checker: PostingChecker) -> dict[Role, list[NodeRecord]]:
        """Return the latest records of each role within `KEEP_S` that were valid then."""
        known: dict[Role, list[NodeRecord]] = {}
        target = _object(_object(self._memory.read_swarm(self._swarm).get("targets")).get(self.target))
        for role, most in MAX_RECORDS.items():
            match target.get(role.value):
                case {"found_at_s": float(at_s), "records": list(entries)} if (
                    0.0 <= self._memory.wall_s() - at_s < KEEP_S
                ):
                    opened = (_opened(entry, checker, role, at_s) for entry in entries[:most])
                    known[role] = [record for record in opened if record is not None]
        return known

    def note_found(self, role: Role, target: str, found: Sequence[SealedRecord]) -> None:
        """Replace the records of a role if they are of this target."""
        if target == self.target != ALL_TARGETS and role in MAX_RECORDS:
            self._found[role] = self._memory.wall_s(), found

    def write(self, asked: Iterable[KnownPeer], met: Collection[str]) -> None:
        """Store the peers that were asked and the records found, those of `met` peers first."""
        peers = {peer.peer_id: peer for peer in (*self.peers(), *asked)}
        targets = _object(self._memory.read_swarm(self._swarm).get("targets"))
        if self._found:
            kept = dict(_object(targets.pop(self.target, None)))
            for role, (at_s, found) in self._found.items():
                best = sorted(found, key=lambda sealed: sealed.owner not in met)[: MAX_RECORDS[role]]
                records = [[each.cell, each.owner, b64encode(each.data).decode("ascii")] for each in best]
                kept[role.value] = {"found_at_s": at_s, "records": records}
            targets = {self.target: kept, **targets}
        known = {"peers": [asdict(peer) for peer in _best(peers.values())], "targets": _first(targets, MAX_TARGETS)}
        self._memory.write_swarm(self._swarm, known)


def _best(peers: Iterable[KnownPeer]) -> tuple[KnownPeer, ...]:
    return tuple(sorted(peers, key=lambda peer: (not peer.has_answered, -peer.asked_at_s))[:MAX_PEERS])


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(values: Mapping[str, Any], most: int) -> dict[str, Any]:
    return dict(islice(values.items(), most))


def _opened(entry: Any, checker: PostingChecker, role: Role, at_s: float) -> NodeRecord | None:
    try:
        match entry:
            case [str(cell), str(owner), str(text)] if len(text) <= 2 * MAX_RECORD_BYTES:
                # Checked for the time when it was found.
                record = checker.open(b64decode(text, validate=True), cell=cell, owner=owner, now_s=at_s)
                return record if record.role == role else None
    except (RemoteProtocolError, ValueError) as error:
        logger.debug("an invalid remembered record is ignored: %s", error)
    return None
