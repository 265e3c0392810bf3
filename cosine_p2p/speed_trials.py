"""The speed trials of a client or verifier, by who serves and how it samples. Pure."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from cosine_p2p.speed_trial import SpeedTrial

MAX_TRIALS: Final = 64
"""Bounds memory: kinds of requests at verifiers that a client remembers."""


class SpeedTrials:
    """Trials of one set of ways by who serves the request and how it samples; the latest `MAX_TRIALS` are kept."""

    def __init__(self, ways: Sequence[int], *, knows_fed: bool = False) -> None:
        self._ways = tuple(ways)
        self._knows_fed = knows_fed
        self._trials: dict[tuple[str, float], SpeedTrial] = {}

    def find(self, server: str, temperature: float) -> SpeedTrial | None:
        """The trial of requests at a server with this temperature; a new one begins like the nearest known.

        None where there are no ways to compare.
        """
        if not self._ways:
            return None
        key = server, round(temperature, 1)
        trial = self._trials.pop(key, None)
        if trial is None:
            known = [other for other in self._trials if other[0] == server]
            nearest = min(known, key=lambda other: abs(other[1] - temperature), default=None)
            new = SpeedTrial(self._ways, knows_fed=self._knows_fed)
            trial = self._trials[nearest].similar() if nearest else new
        self._trials[key] = trial
        if len(self._trials) > MAX_TRIALS:
            self._trials.pop(next(iter(self._trials)))
        return trial

    def state(self) -> list[dict[str, Any]]:
        """All trials as values of JSON, the one used last at the end."""
        return [
            {"server": server, "temperature": temperature, **trial.state()}
            for (server, temperature), trial in self._trials.items()
        ]

    def restore(self, states: Any) -> None:
        """Take in trials of another process; what is broken, or of other ways, is left out."""
        for state in states[-MAX_TRIALS:] if isinstance(states, list) else ():
            match state:
                case {"server": str(server), "temperature": float(temperature)}:
                    with suppress(ValueError):
                        self._trials[server, round(temperature, 1)] = SpeedTrial.of_state(state, self._ways)
