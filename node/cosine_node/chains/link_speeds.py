"""How fast activations go from one stage to the next, as stages tell their head. Pure."""

from collections import deque
from statistics import median
from typing import Final

from cosine_node.chains.stage_speeds import FORGOTTEN_S
from cosine_p2p.storage.memory import Remembered

UNKNOWN_BYTES_PER_S: Final = 12.5e6
"""A line that nobody has measured: 100 Mbit/s. On a slower one the first passes of a prompt are too long, on a
faster one too short."""
LEAST_BYTES: Final = 1 << 16
"""What is shorter says little: it may come at once, or one packet after the other."""
SAMPLES: Final = 9
"""The median of so many outlasts four passes that other streams were in the way of; where a line has changed, five
show it."""
REMEMBERED_PAIRS: Final = 256
"""Bounds memory."""


class LinkSpeeds:
    """The lines between stages that were neighbours in chains. Times never go back.

    What a stage says of its line is believed: it decides how long the passes of prompts are, and nothing else.
    """

    def __init__(self) -> None:
        self._samples = Remembered[tuple[str, str], deque[float]](REMEMBERED_PAIRS, forgotten_s=FORGOTTEN_S)

    def note(self, pair: tuple[str, str], *, size_bytes: int, seconds: float, now_s: float) -> None:
        """So many bytes took so long from one stage to the other."""
        if size_bytes < LEAST_BYTES or seconds <= 0:
            return
        samples = self._samples.get(pair, now_s) or deque(maxlen=SAMPLES)
        samples.append(size_bytes / seconds)
        self._samples.note(pair, samples, now_s=now_s)

    def bytes_per_s(self, pair: tuple[str, str], *, now_s: float) -> float:
        """What the line between two stages carries."""
        samples = self._samples.get(pair, now_s)
        return median(samples) if samples else UNKNOWN_BYTES_PER_S
