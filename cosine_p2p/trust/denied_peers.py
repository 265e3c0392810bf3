"""Peers that this machine does not talk to: those denied for one run, and banned ones.

A peer that floods is disconnected; after `DISCONNECTED` disconnections within `WITHIN_S` it is banned. Each ban
lasts twice as long as the one before, up to a maximum, since new peer ids cost nothing.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cosine_p2p.storage.bounded_file import read_bounded
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.storage.state_file import StateFile
from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import public_key_of

logger = logging.getLogger(__name__)

DISCONNECTED: Final = 5
WITHIN_S: Final = 3600.0
APART_S: Final = 10.0
FIRST_BAN_S: Final = 3600.0
LONGEST_BAN_S: Final = 86_400.0
REMEMBERED_S: Final = 7 * 86_400.0  # How long after a ban the next one is longer.
LOOK_AGAIN_S: Final = 10.0  # The interval at which a running node reads the bans.
MAX_PEERS: Final = 4096  # Bounds memory: the peers whose disconnections are counted.
MAX_BANS: Final = 10_000  # Bounds the file; those that end first are forgotten first.
MAX_WHY: Final = 80  # Characters: a line of a terminal.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A peer that is banned until a Unix time, after a number of bans for floods."""

    peer_id: str
    until_s: float
    why: str
    floods: int = 0


class BanFile:
    """Banned peers in the state folder, with the number of their bans for floods. Invalid entries are ignored."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        # More than the bounds allow: 12 bytes a character of `why`, and 150 for the rest.
        self._file = StateFile("bans.json", max_bytes=16 << 20, file=file)
        self._clock = clock
        self._has_logged = False

    def read(self) -> dict[str, Ban]:
        """The bans that have not ended, by peer id, the latest end last."""
        now_s = self._clock()
        bans = sorted(self._remembered().values(), key=lambda ban: ban.until_s)
        return {ban.peer_id: ban for ban in bans if ban.until_s > now_s}

    def ban(self, peer_id: str, *, until_s: float, why: str) -> None:
        known = self._remembered()
        floods = known[peer_id].floods if peer_id in known else 0
        known[peer_id] = Ban(peer_id=peer_id, until_s=until_s, why=why[:MAX_WHY], floods=floods)
        self._keep(known)

    def ban_flooder(self, peer_id: str, why: str) -> Ban:
        """Ban a peer for longer than the last time, unless its present ban is longer."""
        known = self._remembered()
        old = known.get(peer_id)
        earlier = old.floods if old is not None else 0
        # The exponent is bounded, since 2 ** n overflows a float.
        until_s = self._clock() + min(LONGEST_BAN_S, FIRST_BAN_S * 2 ** min(earlier, 10))
        if old is not None and old.until_s > until_s:
            until_s, why = old.until_s, old.why
        known[peer_id] = ban = Ban(peer_id=peer_id, until_s=until_s, why=why[:MAX_WHY], floods=earlier + 1)
        self._keep(known)
        return ban

    def lift(self, peer_id: str) -> bool:
        """End a ban, and forget earlier ones; False if there is none."""
        known = self._remembered()
        ban = known.pop(peer_id, None)
        if ban is None or ban.until_s <= self._clock():
            return False
        self._keep(known)
        return True

    def _remembered(self) -> dict[str, Ban]:
        now_s, values = self._clock(), self._file.read()
        bans: dict[str, Ban] = {}
        broken = 0
        for peer_id, value in values.items():
            match value:
                # Times after the year 5138 were not written by us.
                case {"until_s": float(until_s), "why": str(why), "floods": int(floods)} if (
                    0 < until_s <= 1e11 and floods >= 0
                ):
                    if until_s + (REMEMBERED_S if floods else 0.0) > now_s:
                        bans[peer_id] = Ban(peer_id=peer_id, until_s=until_s, why=why[:MAX_WHY], floods=floods)
                case _:
                    broken += 1
        if broken and not self._has_logged:
            self._has_logged = True
            sentence = "%s: %d of %d bans cannot be read and do not hold"
            logger.warning(sentence, self._file.path, broken, len(values))
        return bans

    def _keep(self, bans: dict[str, Ban]) -> None:
        latest = sorted(bans.values(), key=lambda ban: ban.until_s)[-MAX_BANS:]
        written = {ban.peer_id: asdict(ban) for ban in latest}
        for fields in written.values():
            del fields["peer_id"]
        self._file.write(written)


@dataclass(slots=True)
class _Offender:
    since_s: float
    last_s: float = -math.inf
    disconnected: int = 0


class DeniedPeers:
    """The denied peers: `given` ones for the life of this object, those in `bans` until their bans end."""

    def __init__(
        self, given: Iterable[str] = (), bans: BanFile | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._given = frozenset(given)
        self._bans = bans
        self._clock = clock
        self._offenders = Remembered[str, _Offender](MAX_PEERS)
        self._banned: dict[str, Ban] = {}
        self._looked_at_s = -math.inf

    def __contains__(self, peer_id: str) -> bool:
        now_s = self._clock()
        # Also after the clock was set back.
        if self._bans is not None and not 0.0 <= now_s - self._looked_at_s < LOOK_AGAIN_S:
            self._looked_at_s = now_s
            self._banned = self._bans.read()
        ban = self._banned.get(peer_id)
        return peer_id in self._given or (ban is not None and ban.until_s > now_s)

    def note_disconnected(self, peer_id: str) -> None:
        """Count a disconnection of a flooding peer, and ban a peer that returns each time."""
        if self._bans is None:
            return
        now_s = self._clock()
        offender = self._offenders.get(peer_id) or _Offender(now_s)
        self._offenders.note(peer_id, offender)
        if 0.0 <= now_s - offender.last_s < APART_S:
            return
        offender.last_s = now_s
        if not 0.0 <= now_s - offender.since_s <= WITHIN_S:
            offender.since_s, offender.disconnected = now_s, 0
        offender.disconnected += 1
        if offender.disconnected < DISCONNECTED:
            return
        offender.disconnected = 0
        ban = self._bans.ban_flooder(peer_id, "it flooded this node each time it came back")
        logger.warning(
            "peer %s is banned for %g h: it floods again after several disconnections. "
            "`cosine-node ban %s --lift` ends that",
            peer_id,
            round((ban.until_s - now_s) / 3600, 1),
            peer_id,
        )
        self._looked_at_s = -math.inf


def parse_denied(values: Iterable[str]) -> frozenset[str]:
    """Parse peer ids, and files with one peer id a line. Raises `UsageError`."""
    denied: set[str] = set()
    for value in values:
        try:
            public_key_of(value)
            denied.add(value)
        except BadSignature:
            denied |= _read_list(Path(value))
    return frozenset(denied)


def _read_list(file: Path) -> set[str]:
    try:
        text = read_bounded(file).decode("utf-8")
    except (OSError, ValueError):
        raise UsageError(f"{str(file)!r} is neither a peer id nor a file of peer ids, one a line.") from None
    peer_ids = {name for line in text.splitlines() if (name := line.partition("#")[0].strip())}
    for peer_id in sorted(peer_ids):
        try:
            public_key_of(peer_id)
        except BadSignature:
            raise UsageError(f"{peer_id!r} in {file} is not a peer id.") from None
    return peer_ids
