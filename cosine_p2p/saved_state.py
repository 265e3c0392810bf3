"""What a client measured of its verifiers, kept between runs, so that a command need not find it out each time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.strategy.speed_trial import SpeedTrials

MAX_FILE_BYTES: Final = 1 << 20
"""Bounds what is read; all trials of all strategies take a few dozen kB."""


class TrialFile:
    """Speed trials by strategy, in a file. One that is missing, broken or too large holds none."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = StateFile("trials.json", max_bytes=MAX_FILE_BYTES, file=file)

    def read_into(self, trials: Mapping[str, SpeedTrials]) -> None:
        """Let trials go on where those of an earlier process ended."""
        for name, state in self._file.read().items():
            if name in trials:
                trials[name].restore(state)

    def write(self, trials: Mapping[str, SpeedTrials]) -> None:
        """Keep trials for the next process."""
        self._file.write({name: state for name, known in trials.items() if (state := known.state())})
