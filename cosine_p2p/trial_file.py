"""What a client measured of its verifiers, kept between runs, so that a command need not find it out each time."""

import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platformdirs import user_state_dir

from cosine_p2p.speed_trial import SpeedTrials

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 1 << 20
"""Bounds what is read; all trials of all strategies take a few dozen kB."""


class TrialFile:
    """Speed trials by strategy, in a file. One that is missing, broken or too large holds none."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or Path(user_state_dir("cosine-p2p")) / "trials.json"

    def read_into(self, trials: Mapping[str, SpeedTrials]) -> None:
        """Let trials go on where those of an earlier process ended."""
        try:
            is_ours = self._file.stat().st_size <= MAX_FILE_BYTES
            states: Any = json.loads(self._file.read_text("utf-8")) if is_ours else None
        except (OSError, ValueError, RecursionError):
            return
        for name, state in states.items() if isinstance(states, dict) else ():
            if name in trials:
                trials[name].restore(state)

    def write(self, trials: Mapping[str, SpeedTrials]) -> None:
        """Keep trials for the next process."""
        states = {name: state for name, known in trials.items() if (state := known.state())}
        draft = self._file.with_name(f".{self._file.name}.{secrets.token_hex(8)}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(states), "utf-8")
            os.replace(draft, self._file)
        except OSError as error:
            logger.debug("the trials could not be kept: %s", error)
