"""The speed of finished generations over time."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from cosine_p2p.request.results import Generation, Observer

MAX_POINTS: Final = 240
"""As many as a curve on a screen can show."""


class Trend:
    """An `Observer` that keeps the latest generations as JSON `points`, oldest first, and forwards to another."""

    def __init__(self, observer: Observer, *, unix_s: Callable[[], float]) -> None:
        self._observer = observer
        self._unix_s = unix_s
        self.points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)

    def observe(self, done: Generation) -> None:
        self._observer.observe(done)
        took_s = done.seconds - done.time_to_first_token_s
        if done.tokens > 1 and took_s > 0 and done.rounds:
            self.points.append(
                {
                    "unix_s": round(self._unix_s(), 3),
                    "tokens": done.tokens,
                    "tokens_per_s": round((done.tokens - 1) / took_s, 2),
                    "tokens_per_pass": round(done.tokens / done.rounds, 3),
                    "acceptance": round(done.accepted / done.offered, 4) if done.offered else None,
                }
            )

    def observe_abandoned(self, part: Generation) -> None:
        self._observer.observe_abandoned(part)
