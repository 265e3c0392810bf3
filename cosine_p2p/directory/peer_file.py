"""What a client knows of peers, kept between runs: who failed, who was right, how fast and far each was."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cosine_p2p.directory.distances import Distances
from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_p2p.trust.standing import Standings

MAX_FILE_BYTES: Final = 3 << 20
"""Above what `PeerFailures`, `PeerSpeeds`, `Standings` and `Distances` hold with 200 bytes an entry."""


class PeerFile:
    """Failures, speeds, standings and distances in a file. One that is missing, broken or too large holds none.

    `now_s` arguments are of the clock that the client goes by, which need not be the same in the next process;
    `wall_s` gives the time of day.
    """

    def __init__(self, file: Path | None = None, *, wall_s: Callable[[], float] = time.time) -> None:
        self._file = StateFile("verifiers.json", max_bytes=MAX_FILE_BYTES, file=file)
        self._wall_s = wall_s

    def read_into(
        self,
        failures: PeerFailures,
        speeds: PeerSpeeds,
        standings: Standings,
        distances: Distances,
        *,
        now_s: float,
    ) -> None:
        """Let all go on where those of an earlier process ended."""
        match self._file.read():
            case {"kept_at_s": float(kept_at_s), "failures": failed, "speeds": measured, **others}:
                away_s = max(0.0, self._wall_s() - kept_at_s)
                failures.restore(failed, now_s=now_s, away_s=away_s)
                speeds.restore(measured, now_s=now_s, away_s=away_s)
                standings.restore(others.get("standings"), now_s=now_s, away_s=away_s)
                distances.restore(others.get("distances"), now_s=now_s, away_s=away_s)

    def write(
        self,
        failures: PeerFailures,
        speeds: PeerSpeeds,
        standings: Standings,
        distances: Distances,
        *,
        now_s: float,
    ) -> None:
        """Keep all for the next process."""
        self._file.write(
            {
                "kept_at_s": self._wall_s(),
                "failures": failures.state(now_s),
                "speeds": speeds.state(now_s),
                "standings": standings.state(now_s),
                "distances": distances.state(now_s),
            }
        )
