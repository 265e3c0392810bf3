"""The speeds of peers as this client measured them, which count before any that are announced. Pure."""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Final

from cosine_protocol.errors import CosineError, ErrorCode, PeerError

# --------------------
# The peers that failed this client lately: they are asked after all others until that has faded. Pure.


EXPECTED_REFUSALS: Final = frozenset({ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN, ErrorCode.OUT_OF_MEMORY})
"""Refusals of a verifier that is busy or leaves, whatever its record said some seconds ago."""
FIRST_PAUSE_S: Final = 60.0
"""A choice: longer than most requests, and short for a machine that was only restarted."""
LONGEST_PAUSE_S: Final = 3600.0
"""A choice: pauses double up to it."""
FAILURES_FORGOTTEN_S: Final = 6 * 3600.0
"""A choice: after so long without a failure a peer begins anew."""
MAX_PEERS: Final = 1024
"""Bounds memory; those that failed longest ago are forgotten first."""


@dataclass(slots=True)
class _Failures:
    count: int
    until_s: float
    latest_s: float


class PeerFailures:
    """Peers that were lost, broke the protocol, or refused what their record offers. Times never go back."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Failures] = OrderedDict()

    def note_failed(self, peer_id: str, *, now_s: float) -> None:
        """Avoid a peer for a while, each time for twice as long."""
        known = self._peers.pop(peer_id, None)
        count = known.count if known and now_s - known.latest_s < FAILURES_FORGOTTEN_S else 0
        # The exponent is bounded, since 2 ** n overflows a float.
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count, 16))
        self._peers[peer_id] = _Failures(count + 1, now_s + pause_s, now_s)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)

    def note_error(self, peer_id: str, error: CosineError, *, now_s: float) -> None:
        """Avoid a verifier for its error, unless it is busy or leaves."""
        if not (isinstance(error, PeerError) and error.code in EXPECTED_REFUSALS):
            self.note_failed(peer_id, now_s=now_s)

    def note_served(self, peer_id: str) -> None:
        """Forget what a peer did before it served a request to its end."""
        self._peers.pop(peer_id, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """The peers to ask after all others now."""
        return frozenset(peer_id for peer_id, known in self._peers.items() if known.until_s > now_s)

    def state(self, now_s: float) -> list[list[Any]]:
        """All failures as values of JSON: [peer id, count, seconds left to avoid it, seconds since the latest]."""
        return [
            [peer_id, known.count, known.until_s - now_s, now_s - known.latest_s]
            for peer_id, known in self._peers.items()
        ]

    def restore(self, states: Any, *, now_s: float, away_s: float) -> None:
        """Take in the failures that another process kept `away_s` ago; what is broken is left out."""
        for state in states[-MAX_PEERS:] if isinstance(states, list) else ():
            match state:
                case [str(peer_id), int(count), float(left_s), float(age_s)]:
                    if count > 0 and left_s <= LONGEST_PAUSE_S and 0.0 <= age_s < math.inf:
                        until_s, latest_s = now_s + left_s - away_s, now_s - age_s - away_s
                        self._peers[peer_id] = _Failures(count, until_s, latest_s)


# --------------------


NEWEST_WEIGHT: Final = 0.3
"""A choice: the weight of the newest request in the average; a node that others use too is slower at times."""
PREFILL_DECAY: Final = 0.9
"""A choice: the slowest prefill counts, since a prefix that is still cached takes no time, and fades by a tenth."""
SPEEDS_FORGOTTEN_S: Final = 7 * 24 * 3600.0
"""A choice: machines and their neighbours change within weeks."""
"""Bounds memory; those measured longest ago are forgotten first."""
MAX_PASS_S: Final = 3600.0
"""Bounds what is taken from a file, as `U` of docs/protocol.md bounds what peers announce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualSpeeds:
    """The medians of what was measured of some peers; None where nothing was."""

    pass_s: float | None = None
    prefill_token_s: float | None = None


@dataclass(slots=True)
class _Speed:
    pass_s: float | None
    prefill_token_s: float | None
    measured_at_s: float


class PeerSpeeds:
    """Seconds between the commits of each verifier, and for each token of a prompt. Times never go back."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Speed] = OrderedDict()

    def note_pass(self, peer_id: str, pass_s: float, *, now_s: float) -> None:
        """Take in the mean time between the commits of a request."""
        speed = self._touch(peer_id, now_s)
        known_s = pass_s if speed.pass_s is None else speed.pass_s
        speed.pass_s = known_s + NEWEST_WEIGHT * (pass_s - known_s)

    def note_prefill(self, peer_id: str, token_s: float, *, now_s: float) -> None:
        """Take in the time for each token of a prompt until the first commit."""
        speed = self._touch(peer_id, now_s)
        speed.prefill_token_s = max(token_s, PREFILL_DECAY * (speed.prefill_token_s or 0.0))

    def passes_s(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, float]:
        """The measured passes of those of some peers that were measured."""
        speeds = {peer_id: self._fresh(peer_id, now_s) for peer_id in peer_ids}
        return {peer_id: speed.pass_s for peer_id, speed in speeds.items() if speed and speed.pass_s is not None}

    def measured(self, *, now_s: float) -> frozenset[str]:
        """The peers that have served this client lately."""
        return frozenset(peer_id for peer_id in self._peers if self._fresh(peer_id, now_s))

    def usual(self, peer_ids: Iterable[str], *, now_s: float) -> UsualSpeeds:
        """The medians of some peers."""
        speeds = [speed for peer_id in peer_ids if (speed := self._fresh(peer_id, now_s))]
        passes_s = [speed.pass_s for speed in speeds if speed.pass_s is not None]
        prefills_s = [speed.prefill_token_s for speed in speeds if speed.prefill_token_s is not None]
        return UsualSpeeds(
            pass_s=median_low(passes_s) if passes_s else None,
            prefill_token_s=median_low(prefills_s) if prefills_s else None,
        )

    def state(self, now_s: float) -> list[list[Any]]:
        """All speeds as values of JSON with their age: [peer id, pass, prefill of a token, age], in seconds."""
        return [
            [peer_id, speed.pass_s, speed.prefill_token_s, now_s - speed.measured_at_s]
            for peer_id, speed in self._peers.items()
        ]

    def restore(self, states: Any, *, now_s: float, away_s: float) -> None:
        """Take in the speeds that another process kept `away_s` ago; what is broken is left out."""
        for state in states[-MAX_PEERS:] if isinstance(states, list) else ():
            match state:
                case [str(peer_id), float() | None as pass_s, float() | None as token_s, float(age_s)]:
                    if all(map(_is_time, (pass_s or 0.0, token_s or 0.0))) and 0.0 <= age_s < math.inf:
                        self._peers[peer_id] = _Speed(pass_s, token_s, now_s - age_s - away_s)

    def _touch(self, peer_id: str, now_s: float) -> _Speed:
        speed = self._fresh(peer_id, now_s) or _Speed(None, None, now_s)
        speed.measured_at_s = now_s
        self._peers[peer_id] = speed
        self._peers.move_to_end(peer_id)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return speed

    def _fresh(self, peer_id: str, now_s: float) -> _Speed | None:
        speed = self._peers.get(peer_id)
        return speed if speed is not None and now_s - speed.measured_at_s < SPEEDS_FORGOTTEN_S else None


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= MAX_PASS_S
