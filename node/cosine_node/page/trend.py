"""How generations went over time: one point for each that has finished here."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from cosine_p2p.request.results import Generation, Observer

MAX_POINTS: Final = 240
"""A curve on a screen has no room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One generation that ended at `unix_s`; `acceptance` is None where nothing was drafted in time."""

    unix_s: float
    tokens: int
    tokens_per_s: float
    tokens_per_pass: float
    acceptance: float | None


class Trend:
    """An `Observer` that remembers the latest generations, and tells another one of all of them."""

    def __init__(self, observer: Observer, *, unix_s: Callable[[], float]) -> None:
        self._observer = observer
        self._unix_s = unix_s
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    def observe(self, done: Generation) -> None:
        self._observer.observe(done)
        took_s = done.seconds - done.time_to_first_token_s
        if done.tokens > 1 and took_s > 0 and done.rounds:
            self._points.append(
                Point(
                    unix_s=round(self._unix_s(), 3),
                    tokens=done.tokens,
                    tokens_per_s=round((done.tokens - 1) / took_s, 2),
                    tokens_per_pass=round(done.tokens / done.rounds, 3),
                    acceptance=round(done.accepted / done.offered, 4) if done.offered else None,
                )
            )

    def observe_abandoned(self, part: Generation) -> None:
        self._observer.observe_abandoned(part)

    def as_objects(self) -> list[dict[str, Any]]:
        """The points, the oldest first."""
        return [asdict(point) for point in self._points]
