"""What a head has found out about stages, kept in a file from one run to the next."""

import logging
import time
from collections.abc import Callable
from typing import Final

from cosine_node.chains.disputes import Disputes
from cosine_node.chains.stage_speeds import StageSpeeds, Suspicions
from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.peer_memory import PeerFailures

LOG = logging.getLogger(__name__)
VERSION: Final = 1
MAX_FILE_BYTES: Final = 2 << 20
"""Above what the parts hold, with 200 bytes an entry and 20 stages a dispute: a larger is not ours."""


class StageFindings:
    """Who was right and who lied, who is slow, suspected or failed. Without a file they end with the process.

    Each part is bounded and forgets by itself. `now_s` arguments are of the clock that the head goes by, which need
    not be the same in the next process; `wall_s` gives the time of day.
    """

    def __init__(self, file: StateFile | None = None, *, wall_s: Callable[[], float] = time.time) -> None:
        self.disputes = Disputes()
        self.speeds = StageSpeeds()
        self.suspicions = Suspicions()
        self.failures = PeerFailures()
        self._parts: dict[str, Disputes | StageSpeeds | Suspicions | PeerFailures] = {
            "disputes": self.disputes,
            "speeds": self.speeds,
            "suspicions": self.suspicions,
            "failures": self.failures,
        }
        self._file = file
        self._wall_s = wall_s

    def read(self, *, now_s: float) -> None:
        """Go on where an earlier process ended; what is broken is left out."""
        if self._file is None:
            return
        match self._file.read():
            case {"version": int(version), "kept_at_s": float(kept_at_s), **kept} if version == VERSION:
                away_s = max(0.0, self._wall_s() - kept_at_s)
                for name, part in self._parts.items():
                    part.restore(kept.get(name), now_s=now_s, away_s=away_s)
            case {**other} if other:
                sentence = "%s is not of version %d and counts as empty; what is noted next replaces it"
                LOG.warning(sentence, self._file.path, VERSION)

    def write(self, *, now_s: float) -> None:
        """Keep all for the next process."""
        if self._file is not None:
            parts = {name: part.state(now_s) for name, part in self._parts.items()}
            self._file.write({"version": VERSION, "kept_at_s": self._wall_s(), **parts})


def findings_of(head: str, *, now_s: float) -> StageFindings:
    """What a head of this machine has found in earlier runs, with its file in the state folder."""
    findings = StageFindings(StateFile(f"stages-{head[-12:]}.json", max_bytes=MAX_FILE_BYTES))
    findings.read(now_s=now_s)
    return findings
