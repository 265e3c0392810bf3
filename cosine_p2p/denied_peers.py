"""Peers that nobody on this machine talks to: those named for one run, and those banned for longer."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cosine_p2p.flood_bans import FloodBans
from cosine_p2p.state_file import StateFile
from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import public_key_of

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 10.0
"""A choice: a running node takes up a ban so soon."""
MAX_BANS: Final = 10_000
"""Bounds the file; those that end first are forgotten first."""
MAX_FILE_BYTES: Final = 1 << 20
"""Above what these bounds allow with 90 bytes a ban: a larger file is not ours."""


class BanFile:
    """Banned peers in the state folder, each with the Unix time at which its ban ends. Broken files hold none."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._file = StateFile("bans.json", max_bytes=MAX_FILE_BYTES, file=file)
        self._clock = clock

    def read(self) -> dict[str, float]:
        """The bans that have not ended."""
        now_s = self._clock()
        bans = self._file.read()
        return {
            peer_id: until_s for peer_id, until_s in bans.items() if isinstance(until_s, float) and until_s > now_s
        }

    def ban(self, peer_id: str, *, until_s: float) -> None:
        """Ban a peer until then, in place of any ban it has."""
        bans = sorted((self.read() | {peer_id: until_s}).items(), key=lambda ban: ban[1])
        self._file.write(dict(bans[-MAX_BANS:]))

    def lift(self, peer_id: str) -> bool:
        """End a ban; False if there is none."""
        bans = self.read()
        is_banned = bans.pop(peer_id, None) is not None
        if is_banned:
            self._file.write(dict(bans))
        return is_banned


class DeniedPeers:
    """`given` are denied for the life of this object, those in `bans` until their bans end."""

    def __init__(
        self, given: Iterable[str] = (), bans: BanFile | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._given = frozenset(given)
        self._bans = bans
        self._clock = clock
        self._flood_bans = FloodBans()
        self._banned: dict[str, float] = {}
        self._look_again_at_s = 0.0

    def __contains__(self, peer_id: str) -> bool:
        now_s = self._clock()
        if self._bans is not None and now_s >= self._look_again_at_s:
            self._look_again_at_s = now_s + LOOK_AGAIN_S
            self._banned = self._bans.read()
        return peer_id in self._given or self._banned.get(peer_id, 0.0) > now_s

    def note_disconnected(self, peer_id: str) -> None:
        """Count that a peer was disconnected for a flood, and ban it where it comes back each time."""
        now_s = self._clock()
        ban_s = self._flood_bans.note_disconnected(peer_id, now_s=now_s)
        if not ban_s or self._bans is None:
            return
        logger.warning(
            "peer %s is banned for %g h: it was disconnected again and again, and goes on. "
            "`cosine-node ban %s --lift` ends that",
            peer_id,
            ban_s / 3600,
            peer_id,
        )
        # A longer ban of the operator's stays.
        self._bans.ban(peer_id, until_s=max(now_s + ban_s, self._bans.read().get(peer_id, 0.0)))
        self._look_again_at_s = 0.0


def parse_denied(values: Iterable[str]) -> frozenset[str]:
    """The peers that peer ids, and files with one a line, name. Raises `UsageError`."""
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
        lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{str(file)!r} is neither a peer id nor a file of peer ids, one a line.") from None
    peer_ids = {line for line in lines if line}
    for peer_id in sorted(peer_ids):
        try:
            public_key_of(peer_id)
        except BadSignature:
            raise UsageError(f"{peer_id!r} in {file} is not a peer id.") from None
    return peer_ids
